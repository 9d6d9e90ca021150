"""A typed answer in the modes TOOLS, TOOLS_STRICT, JSON_SCHEMA, RESPONSES_TOOLS and ANTHROPIC_TOOLS."""

import os
from typing import Literal

import instructor
from anthropic import Anthropic
from instructor import Mode
from openai import OpenAI
from pydantic import BaseModel


class City(BaseModel, extra="forbid"):
    name: Literal["Paris", "Berlin"]


asked = {"model": os.environ["MODEL"], "messages": [{"role": "user", "content": "Where?"}], "response_model": City}
for mode in (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA, Mode.RESPONSES_TOOLS):
    client = instructor.from_openai(OpenAI(max_retries=0), mode=mode)
    tokens = "max_output_tokens" if mode is Mode.RESPONSES_TOOLS else "max_tokens"
    assert client.chat.completions.create(**asked, max_retries=0, **{tokens: 900}).name in ("Paris", "Berlin")
client = instructor.from_anthropic(Anthropic(max_retries=0), mode=Mode.ANTHROPIC_TOOLS)
assert client.messages.create(**asked, max_retries=0, max_tokens=900).name in ("Paris", "Berlin")
