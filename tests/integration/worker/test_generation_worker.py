"""A whole worker with text: a tiny random model, a tokenizer of one token per byte, a chat template."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from radixkv import InvalidArgumentError, PoolHeldError, PoolShape, UnavailableError, connect
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams, Prompt
from radixkv.generation.stream import BranchFinished, Delta, FinishReason, GenerationEvent, Started
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.worker.run import Worker, WorkerConfig

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("model")
    torch.manual_seed(3)
    config = tf.LlamaConfig(
        vocab_size=260,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=256,
        eos_token_id=259,
    )
    model = tf.LlamaForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = tf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", additional_special_tokens=SPECIAL, chat_template=TEMPLATE
    )
    fast.save_pretrained(folder)
    return str(folder)


def _config(model_folder: str, **changes: object) -> WorkerConfig:
    values = {"model": model_folder, "listen": "127.0.0.1:0", "num_blocks": 64, "dtype": "float32", "device": "cpu"}
    return WorkerConfig(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def worker(model_folder: str) -> Iterator[Worker]:
    torch.set_num_threads(1)
    with Worker(_config(model_folder)) as worker:
        yield worker


@pytest.fixture
def client(worker: Worker) -> Iterator[GenerationClient]:
    with GenerationClient(worker.address) as client:
        yield client


def _greedy(max_tokens: int, *stop: str) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, stop=stop)


def _text(events: list[GenerationEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def _ids(events: list[GenerationEvent]) -> list[int]:
    return [token_id for event in events if isinstance(event, Delta) for token_id in event.token_ids]


def test_the_pieces_of_text_are_the_text_of_the_tokens(client: GenerationClient) -> None:
    events = list(client.generate(GenerateParams(text="Once upon a time", sampling=_greedy(60))))
    assert len(_ids(events)) == 60
    assert _text(events) == client.detokenize(_ids(events))


def test_a_stop_string_cuts_the_text_in_front_of_it(client: GenerationClient) -> None:
    whole = _text(list(client.generate(GenerateParams(text="Once", sampling=_greedy(60)))))
    stop = whole[20:23]
    events = list(client.generate(GenerateParams(text="Once", sampling=_greedy(60, stop, "never there"))))
    assert _text(events) == whole[: whole.index(stop)]
    assert BranchFinished(0, FinishReason.STOP, stop) in events
    assert client.detokenize(_ids(events)).startswith(whole[: whole.index(stop)] + stop[0])


def test_a_chat_goes_on_from_a_fork_and_computes_only_what_is_new(client: GenerationClient) -> None:
    first = client.generate(GenerateParams(messages=HELLO, sampling=_greedy(10)))
    events = list(first)
    started = events[0]
    assert isinstance(started, Started)
    assert started.prompt == client.tokenize(Prompt(messages=HELLO))
    following = client.fork(ForkParams(generation_id=first.generation_id, messages=HELLO, sampling=_greedy(1)))
    events = [*events, *following]
    usage = following.usage
    assert usage is not None
    assert usage.num_cached_tokens == len(started.prompt) // 4 + 10 - 1
    assert usage.num_computed_tokens == usage.num_prompt_tokens - usage.num_cached_tokens


def test_a_chat_goes_on_from_kept_token_ids(client: GenerationClient) -> None:
    events = list(client.generate(GenerateParams(messages=HELLO, sampling=_greedy(10))))
    assert isinstance(events[0], Started)
    kept = client.tokenize(Prompt(token_ids=_ids(events)), events[0].prompt)
    stream = client.generate(GenerateParams(messages=HELLO, history=kept, sampling=_greedy(2)))
    following = next(stream)
    assert isinstance(following, Started)
    assert following.prompt.startswith(kept)
    assert following.prompt == client.tokenize(Prompt(messages=HELLO), kept)


@pytest.mark.parametrize("messages", [[], [{"role": "user"}], [{"role": "user", "content": 7}]])
def test_messages_that_cannot_be_read_are_refused(client: GenerationClient, messages: list[dict[str, str]]) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        client.generate(GenerateParams(messages=messages))
    assert refusal.value.argument == "messages"


def test_a_worker_holds_the_pool_of_a_service_until_it_is_left(model_folder: str) -> None:
    with ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service:
        address = service.addresses[0]
        with Worker(_config(model_folder, service=address, listen=None)) as worker:
            stream = worker.engine.generate(GenerateParams(text="shared prefix", sampling=_greedy(3)))
            list(stream)
            with connect(address) as reader:
                assert reader.match(worker.engine.tokenize(Prompt(text="shared prefix"))).num_tokens == 13
            with pytest.raises(PoolHeldError):
                connect(address, PoolShape(64))
        connect(address, PoolShape(64)).close()


def test_an_address_in_use_is_refused_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UnavailableError, match="in use"), Worker(_config("no such model", listen=address)):
            pass


def test_a_service_that_is_not_there_is_told(model_folder: str, tmp_path: Path) -> None:
    config = _config(model_folder, service=f"unix:{tmp_path}/nobody", connect_timeout_s=0.5)
    with pytest.raises(UnavailableError), Worker(config):
        pass


def test_a_worker_stops_cleanly_on_sigterm(model_folder: str) -> None:
    program = (
        "from radixkv.worker.run import *\n"
        f"config = WorkerConfig(model={model_folder!r}, listen='127.0.0.1:0', num_blocks=8, device='cpu')\n"
        "run_worker(config, lambda worker: print(worker.address, flush=True))\n"
        "print('stopped')\n"
    )
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with GenerationClient(address) as client:
            stream = client.generate(GenerateParams(text="hello", sampling=_greedy(100)))
            next(stream)
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline().strip() == "stopped"
            assert process.wait(300) == 0
            stream.close()


def test_a_line_is_unknown_to_the_service_until_its_first_fork(model_folder: str) -> None:
    prompt = list(range(1, 101))
    forked = [*prompt[:60], 7, 7]
    told: dict[str, list[list[int]]] = {}
    for layout in ("paged", "arena"):
        with ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service:
            config = _config(model_folder, service=service.addresses[0], layout=layout, num_blocks=96)
            with Worker(config) as worker, GenerationClient(worker.address) as client:
                first = list(client.generate(GenerateParams(token_ids=prompt, sampling=_greedy(20))))
                history = [*prompt, *_ids(first), 9]
                second = list(client.generate(GenerateParams(token_ids=history, sampling=_greedy(20))))
                stats = client.stats()
                assert stats.cache is not None
                is_line = layout == "arena"
                assert stats.engine.num_lines == is_line
                assert (stats.cache.num_cached_blocks == 0) == is_line
                third = list(client.generate(GenerateParams(token_ids=forked, sampling=_greedy(20))))
                usage = third[-1].usage  # type: ignore[union-attr]
                assert usage.num_cached_tokens == 60
                stats = client.stats()
                assert (stats.engine.num_lines, stats.engine.num_moved_lines) == (0, is_line)
                with connect(service.addresses[0]) as reader:
                    assert reader.match(history).num_tokens == len(history)
                told[layout] = [_ids(events) for events in (first, second, third)]
    assert told["arena"] == told["paged"]
