"""Lists of prompts in this process: answered in their order, run in an order that reuses what they share."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from byte_model import save_byte_model

from radixkv import LLM, InvalidArgumentError, SamplingParams, UnavailableError
from radixkv.worker import llm as llm_module

pytestmark = pytest.mark.thorough

GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
SETTINGS: dict[str, Any] = {"num_blocks": 128, "dtype": "float32", "max_model_len": 512, "deterministic": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_byte_model(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    with LLM(model, **SETTINGS) as llm:
        yield llm


def texts(replies: list[Any]) -> list[str]:
    return [reply.outputs[0].text for reply in replies]


def test_replies_come_in_the_order_of_the_prompts(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm_module, "AT_ONCE", 8)
    prompts = [f"{number} is the number " for number in range(40)]
    random.Random(0).shuffle(prompts)
    together = llm.generate(prompts, GREEDY)
    assert [bytes(reply.prompt_token_ids).decode() for reply in together] == prompts
    assert texts(together) == [texts(llm.generate(prompt, GREEDY))[0] for prompt in prompts]
    assert {(len(reply.outputs[0].token_ids), reply.outputs[0].finish_reason) for reply in together} == {(6, "length")}


def test_prompts_that_share_a_prefix_compute_it_once_whatever_their_order(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pool that holds few of the prefixes, by an engine that sees few of the prompts."""
    monkeypatch.setattr(llm_module, "AT_ONCE", 4)
    prefixes = [str(number) * 200 for number in range(8)]
    prompts = [f"{prefix}{question:03}" for question in range(6) for prefix in prefixes]
    with LLM(model, **SETTINGS | {"num_blocks": 40}) as llm:
        replies = llm.generate(prompts, GREEDY)
    num_computed = sum(reply.usage.num_prompt_tokens - reply.num_cached_tokens for reply in replies)
    assert num_computed < 2 * sum(map(len, prefixes))  # each one six times over would be 9,600


def test_ids_branches_and_parameters_of_each(llm: LLM) -> None:
    one, two = llm.generate(["ab", list(b"ab")], [GREEDY, SamplingParams(max_tokens=3, n=2, ignore_eos=True)])
    assert one.prompt == two.prompt
    assert [len(output.token_ids) for output in two.outputs] == [3, 3]
    assert [output.index for output in two.outputs] == [0, 1]
    assert texts(llm.generate(list(b"ab"), GREEDY)) == [one.outputs[0].text]
    assert llm.generate([]) == []


def test_a_conversation_is_one_or_many(llm: LLM) -> None:
    hello = [{"role": "user", "content": "hello"}]
    (alone,) = llm.chat(hello, GREEDY)
    assert bytes(alone.prompt_token_ids) == b"user: hello\nassistant: "
    assert texts(llm.chat([hello, hello], GREEDY)) == [alone.outputs[0].text] * 2


def test_a_fork_goes_on_from_a_token_and_computes_what_is_new(llm: LLM) -> None:
    (reply,) = llm.generate("A history that is long enough to be kept in blocks: ", GREEDY)
    history = [*reply.prompt_token_ids, *reply.outputs[0].token_ids]
    whole, edited = llm.fork(reply, ["", "!!"], GREEDY)
    assert whole.prompt_token_ids == history
    assert edited.prompt_token_ids == [*history, *b"!!"]
    assert whole.usage.num_prompt_tokens - whole.num_cached_tokens <= 1
    assert edited.usage.num_prompt_tokens - edited.num_cached_tokens <= 3
    (cut,) = llm.fork(reply, ["??"], GREEDY, position=20)
    assert cut.prompt_token_ids == [*history[:20], *b"??"]
    assert cut.outputs == llm.generate([cut.prompt_token_ids], GREEDY)[0].outputs
    for wrong in ({"position": len(history) + 1}, {"branch": 1}):
        with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
            llm.fork(reply, **wrong)


def test_a_prompt_that_cannot_be_served_is_named_and_nothing_is_left_running(llm: LLM) -> None:
    with pytest.raises(InvalidArgumentError, match=r"prompts\[2\]"):
        llm.generate(["one", "two", "3" * 4000, "four"], GREEDY)
    with pytest.raises(InvalidArgumentError, match="params"):
        llm.generate(["one", "two"], [GREEDY])
    llm._engine.call(lambda cache: cache.check())
    assert llm._engine.stats().engine.num_generations == 0


def test_it_ends_with_its_context_and_with_its_process(model: str) -> None:
    with LLM(model, **SETTINGS) as llm:
        pass
    llm.close()
    with pytest.raises(UnavailableError):
        llm.generate("a", GREEDY)
    script = f"from radixkv import LLM; print(len(LLM({model!r}, num_blocks=64).generate(['a', 'b'])))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
