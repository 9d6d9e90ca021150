"""`radixkv export` and `radixkv import`: KV of a real model goes from one worker to another, and replies stay the same."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import safetensors
from byte_model import save_byte_model
from chat_stack import chat_stack
from stored_engine import open_store
from talk import Talk

from radixkv.cli import main
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams, Prompt
from radixkv.generation.stream import Delta
from radixkv.stores.settings import StoreSettings
from radixkv.worker.run import Worker, WorkerConfig
from radixkv.worker.server import GenerationServer

MESSAGES = [{"role": "user", "content": "Name a river in France, and say how long it is and where its spring lies."}]
SIZE = 64 << 20


class Reply(NamedTuple):
    tokens: list[int]
    num_cached: int


@pytest.fixture(scope="module", params=["auto", "int8"])
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> WorkerConfig:
    model = save_byte_model(tmp_path_factory.mktemp("model"))
    return WorkerConfig(
        model=model, listen="127.0.0.1:0", num_blocks=64, dtype="float32", device="cpu", kv_dtype=request.param
    )


def start(config: WorkerConfig, folder: Path, **changes: object) -> Worker:
    store = StoreSettings(disk=(folder / "blocks", SIZE), key_file=folder / "store.key")
    folder.mkdir(parents=True, exist_ok=True)
    return Worker(replace(config, store=store, **changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def first(config: WorkerConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start(config, tmp_path_factory.mktemp("first")) as worker:
        yield worker.address


@pytest.fixture(scope="module")
def second(config: WorkerConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start(config, tmp_path_factory.mktemp("second")) as worker:
        yield worker.address


def ask(address: str, prompt: Prompt, namespace: str = "default") -> Reply:
    sampling = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    with GenerationClient(address) as client:
        tokens = client.tokenize(prompt)
        stream = client.generate(GenerateParams(token_ids=tokens, namespace=namespace, sampling=sampling))
        told = [token_id for event in stream if isinstance(event, Delta) for token_id in event.token_ids]
        assert stream.usage is not None
        return Reply(told, stream.usage.num_cached_tokens)


def test_a_chat_goes_from_one_worker_to_another(
    first: str, second: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, path, chat = Prompt(messages=MESSAGES), tmp_path / "chat.safetensors", tmp_path / "chat.json"
    chat.write_text(json.dumps(MESSAGES))
    ask(first, prompt, "team-a")
    warm = ask(first, prompt, "team-a")
    given = ("--namespace", "team-a", "--worker", first)
    assert main(["export", str(path), str(chat), *given]) == 0
    length = warm.num_cached + 1
    size_bytes = path.stat().st_size
    assert capsys.readouterr().out == f"{path}: {length // 16 * 16} of {length} tokens, {size_bytes:,} bytes\n"
    assert path.stat().st_mode & 0o777 == 0o600
    with safetensors.safe_open(path, "numpy") as file:
        assert sorted(file.keys()) == ["blocks", "tokens"]
        assert file.get_tensor("blocks").shape[0] == length // 16
    assert main(["import", str(path), "--namespace", "team-b", "--worker", second]) == 0
    assert capsys.readouterr().out == f"{path}: {length // 16 * 16} of {length // 16 * 16} tokens are stored\n"
    found = ask(second, prompt, "team-b")
    assert found.tokens == warm.tokens
    assert found.num_cached == min(length // 16 * 16, length - 1)
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(MESSAGES)))
    assert main(["export", str(tmp_path / "again"), "-", "--namespace", "team-b", "--worker", second]) == 0
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_what_cannot_be_done_is_one_line_and_leaves_no_file(
    first: str, second: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "story.safetensors"
    there, here = ("--worker", first), ("--worker", second)
    story = ("--text", "Once upon a time there was a story of some length.")

    def failure(*arguments: str) -> str:
        assert main([*arguments]) == 1
        printed = capsys.readouterr().err
        assert printed.startswith("radixkv: ")
        assert printed.count("\n") == 1
        return printed

    assert "whose first block is not cached" in failure("export", str(path), *story, *there)
    assert not path.exists()
    ask(first, Prompt(text=story[1]))
    assert main(["export", str(path), *story, *there]) == 0
    assert "File exists" in failure("export", str(path), *story, *there)
    assert "token ids, a JSON file or -" in failure("export", str(tmp_path / "none"), *there)
    assert "No such file" in failure("import", str(tmp_path / "none"), *here)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    assert "file is " in failure("import", str(path), *here)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "the file is damaged" in failure("import", str(path), *here)


def test_blocks_of_another_precision_are_rejected(
    config: WorkerConfig, first: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "story.safetensors"
    story = "There is nothing so fair as a long story that ends well."
    ask(first, Prompt(text=story))
    assert main(["export", str(path), "--text", story, "--worker", first]) == 0
    other = "int8" if config.kv_dtype == "auto" else "auto"
    with start(config, tmp_path, kv_dtype=other) as worker:
        assert main(["import", str(path), "--worker", worker.address]) == 1
        assert "file's fingerprint is" in capsys.readouterr().err
        assert ask(worker.address, Prompt(text=story)).num_cached == 0


def test_a_reply_of_a_gateway_is_exported_by_its_id(
    default_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        chat_stack(default_model, store=partial(open_store, tmp_path)) as stack,
        GenerationServer(stack.engine, "127.0.0.1:0") as worker,
    ):
        here = ("--gateway", f"http://{stack.server.address}", "--worker", worker.address)
        chat = {"model": "gibberish", "temperature": 0, "max_output_tokens": 30}
        salted = {**chat, "input": "Name a river.", "cache_salt": "pepper"}
        for number, body in enumerate(({**chat, "input": "Name a river."}, salted)):
            said = httpx.post(f"{stack.server.url}/responses", json=body, timeout=300).raise_for_status().json()
            path = tmp_path / f"reply{number}"
            assert main(["export", str(path), "--response", said["id"], *here]) == 0
            length = said["usage"]["total_tokens"]
            printed = re.fullmatch(r".*: (\d+) of (\d+) tokens, .*\n", capsys.readouterr().out)
            assert printed is not None
            assert int(printed[2]) in (length, length + 1)
            assert int(printed[1]) >= length // 16 * 16 - 16
        with Talk(stack.server.url) as talk:
            conversation = talk.begin()
            _, reply = talk.turn(conversation, "Where does the river begin?", max_tokens=40)
            place = f"{conversation}/{reply['id']}"
            assert main(["export", str(tmp_path / "branch"), "--branch", place, *here]) == 0
        for arguments in (("--response", "resp_none"), ("--branch", "a/b"), ("--response", "x", "--namespace", "y")):
            assert main(["export", str(tmp_path / "none"), *arguments, *here]) == 1
        assert not (tmp_path / "none").exists()
