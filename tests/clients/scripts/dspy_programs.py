"""LM over chat, responses, completions and messages: a reply, drafts with log probabilities, a forced tool; an evaluation."""

import os
from typing import Literal

import dspy

model, common = os.environ["MODEL"], {"api_key": "any", "max_tokens": 900, "cache": False, "num_retries": 0}
openai = common | {"api_base": os.environ["OPENAI_BASE_URL"]}
lms = {
    "chat": dspy.LM(f"openai/{model}", **openai),
    "vllm": dspy.LM(f"hosted_vllm/{model}", **openai),
    "responses": dspy.LM(f"openai/{model}", model_type="responses", **openai),
    "text": dspy.LM(f"text-completion-openai/{model}", model_type="text", **openai),
    "messages": dspy.LM(f"anthropic/{model}", api_base=os.environ["BASE"], **common),
}


def weather(city: Literal["Paris", "Berlin"]) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


tools = [dspy.Tool(weather).format_as_litellm_function_call()]
for name, lm in lms.items():
    assert len(lm("hello")) == 1, name
    if name in ("chat", "vllm", "text"):
        drafts = lm("hello", n=3, temperature=1.0, logprobs=True)
        assert len(drafts) == 3, name
        assert all(draft["logprobs"] for draft in drafts), name
    if name != "text":
        [reply] = lm("hello", tools=tools, tool_choice="required")
        assert reply["tool_calls"][0]["function"]["name"] == "weather", name
    questions = [dspy.Example(question=f"question {number}").with_inputs("question") for number in range(4)]
    evaluate = dspy.Evaluate(devset=questions, metric=lambda *_: 1.0, num_threads=2, max_errors=1)
    with dspy.context(lm=lm):
        assert evaluate(lambda question, lm=lm: dspy.Prediction(answer=lm(question))).score == 100.0, name
