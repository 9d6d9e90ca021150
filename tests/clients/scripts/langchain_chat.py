"""ChatOpenAI and ChatAnthropic: invoked, streamed, in a batch, with structured output, over the responses API."""

import os
from typing import Literal

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class City(BaseModel, extra="forbid"):
    """A city."""

    name: Literal["Paris", "Berlin"]


base, model = os.environ["BASE"], os.environ["MODEL"]
openai = {"model": model, "base_url": f"{base}/v1", "api_key": "any", "max_tokens": 900, "max_retries": 0}
chats = [
    ChatOpenAI(**openai),
    ChatOpenAI(**openai, use_responses_api=True),
    ChatAnthropic(model=model, base_url=base, api_key="any", max_tokens=900, max_retries=0),
]
for chat in chats:
    assert chat.invoke("hello").usage_metadata["output_tokens"] <= 900
    assert list(chat.stream("hello"))
    assert len(chat.batch(["one", "two", "three"])) == 3
    assert chat.with_structured_output(City).invoke("Where?").name in ("Paris", "Berlin")
