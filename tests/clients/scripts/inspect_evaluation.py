"""An evaluation over chat, responses and messages: a generated reply, a forced tool, and a score for each sample."""

import os
import pathlib
from typing import Literal

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import Score, Target, accuracy, scorer
from inspect_ai.solver import TaskState, generate, use_tools
from inspect_ai.tool import ToolFunction, tool

model = os.environ["MODEL"]
os.environ |= {"OWN_API_KEY": "any", "OWN_BASE_URL": os.environ["OPENAI_BASE_URL"]}


@tool
def weather():
    async def execute(city: Literal["Paris"]) -> str:
        """The weather.

        Args:
            city: where.
        """
        return f"Sunny in {city}"

    return execute


@scorer(metrics=[accuracy()])
def replied():
    async def score(state: TaskState, target: Target) -> Score:
        called = [call for message in state.messages for call in getattr(message, "tool_calls", None) or []]
        return Score(value="C" if bool(called) == (target.text == "call") and state.output.usage else "I")

    return score


def tasks() -> list[Task]:
    samples = [Sample(input=f"question {number}", target="text") for number in range(2)]
    calling = [use_tools(weather(), tool_choice=ToolFunction("weather")), generate(tool_calls="none")]
    return [
        Task(name="text", dataset=samples, solver=generate(max_tokens=8), scorer=replied()),
        Task(name="call", dataset=[Sample(input="weather?", target="call")], solver=calling, scorer=replied()),
    ]


models = {
    "chat": get_model(f"openai-api/own/{model}", config=GenerateConfig(max_tokens=900)),
    "responses": get_model(f"openai/{model}", responses_api=True, config=GenerateConfig(max_tokens=900)),
    "messages": get_model(f"anthropic/{model}", config=GenerateConfig(max_tokens=900)),
}
for name, served in models.items():
    for log in eval(tasks(), model=served, display="none", log_dir=str(pathlib.Path("logs").absolute()), max_tasks=1):
        assert log.status == "success", (name, log.error)
        assert log.results is not None
        assert log.results.scores[0].metrics["accuracy"].value == 1.0, (name, log.eval.task)
