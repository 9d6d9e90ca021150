"""The vLLM and SGLang backends: choices, a regular expression and a schema are kept to."""

import os
import re
from typing import Literal

import openai
import outlines
from outlines.types import Regex
from pydantic import BaseModel


class City(BaseModel, extra="forbid"):
    name: Literal["Paris", "Berlin"]


client = openai.OpenAI(max_retries=0)
for backend in (outlines.from_vllm, outlines.from_sglang):
    model = backend(client, os.environ["MODEL"])
    assert model("Is it?", Literal["Yes", "No"], max_tokens=20) in ("Yes", "No")
    assert re.fullmatch("[0-9]{3}-[a-f]{2}", model("Number?", Regex("[0-9]{3}-[a-f]{2}"), max_tokens=20))
    City.model_validate_json(model("Where?", City, max_tokens=900))
