"""`radixkv explain` as a person meets it: ids, texts and messages in, a picture or JSON out."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from byte_model import VOCAB_SIZE, save_byte_model
from live_service import Clock
from stored_engine import open_store
from waiting import wait_until

from radixkv import PoolShape, PrefixCache, connect
from radixkv.cli import main
from radixkv.client import RemoteHolder
from radixkv.core.api import WorkerLoad
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine
from radixkv.worker.generations.text import ChatText
from radixkv.worker.server import GenerationServer

SYSTEM = "You are kind."


class Bench:
    """A pool whose tokens are bytes, at a service that `explain` is asked about."""

    def __init__(self, holder: RemoteHolder, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
        self.holder = holder
        self.clock = clock
        self._capsys = capsys

    def store(self, text: str, namespace: str = "default") -> None:
        seq = self.holder.acquire(list(text.encode()), namespace=namespace)
        self.holder.insert(seq.seq_id, len(text))
        self.holder.release(seq.seq_id)

    def explain(self, *arguments: str) -> str:
        assert main(["explain", *arguments, "--service", self.holder.address]) == 0
        return self._capsys.readouterr().out


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Iterator[Bench]:
    clock = Clock()
    config = ServiceConfig(addresses=("127.0.0.1:0",), lease_ttl_s=3600.0)
    with (
        ServiceThread(config, clock=clock) as service,
        connect(service.addresses[0], PoolShape(64, 4)) as holder,
    ):
        yield Bench(holder, clock, capsys)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[str]:
    text, runner = ChatText(save_byte_model(tmp_path)), HashRunner(16, 4, max_model_len=60)
    runner.vocab_size = VOCAB_SIZE
    with (
        Engine(runner, PrefixCache(16, 4), text=text, model_name="bytes") as engine,
        GenerationServer(engine, "127.0.0.1:0") as server,
    ):
        yield server.address


def test_a_prompt_of_ids_is_drawn_up_to_where_it_parts(bench: Bench) -> None:
    bench.store("AAAABBBB")
    bench.store("AAAACCCC")
    ids = [str(code) for code in b"AAAAXXXXXXXXXXXX"]
    assert bench.explain(*ids) == (
        "pool default, namespace default\n"
        "  4 of 16 tokens are cached: others go on there with another token\n"
        "  ━━━━━━━━━━━━━━━·············································   ━ cached 4   · new 12\n"
        "  at token 4\n"
        "    wanted   [88 88 88 88]\n"
        "    found    [67 67 67 67], the nearest of 2 that go on there\n"
    )


def test_what_was_evicted_and_where_it_is_cached_besides_is_told(bench: Bench) -> None:
    bench.store("AAAABBBB")
    bench.holder.evict(2)
    bench.store("AAAABBBBCC", "team b")
    bench.store("AAAA")
    bench.clock.now_s += 90
    out = bench.explain(*(str(code) for code in b"AAAABBBBCC"), "--also", "team b", "--also", "team c")
    assert "4 of 10 tokens are cached: what comes next was cached, and had to go" in out
    assert "━ cached 4   ░ evicted 4   · new 2\n" in out
    assert "    evicted  4 tokens, 1.5 min ago: a call of evict took it\n" in out
    assert "in namespace team b 10 tokens of it are cached\n" in out
    assert "0 of 3 tokens are cached: nothing is cached in this namespace" in bench.explain(
        "1", "2", "3", "--namespace", "c"
    )


def test_what_the_workers_block_store_holds_after_the_cached_tokens_is_told(bench: Bench, tmp_path: Path) -> None:
    prompt = "AAAABBBBCCCCDDDD"
    text, runner = ChatText(save_byte_model(tmp_path / "model")), HashRunner(16, 4, max_model_len=60)
    runner.vocab_size = VOCAB_SIZE
    with (
        closing(open_store(tmp_path, runner)) as store,
        Engine(runner, PrefixCache(16, 4), text=text, store=store) as engine,
        GenerationServer(engine, "127.0.0.1:0") as server,
    ):
        sampling = SamplingParams(max_tokens=1)
        list(engine.generate(GenerateParams(token_ids=list(prompt.encode()), namespace="b", sampling=sampling)))
        wait_until(lambda: engine.stats().levels[0].num_written == 4)
        bench.store(prompt[:6], "b")
        asked = ("--text", prompt + "EE", "--worker", server.address, "--namespace")
        out = bench.explain(*asked, "b")
        assert "6 of 18 tokens are cached" in out
        assert "  the worker's block store holds 8 tokens after the cached ones: " in out
        assert json.loads(bench.explain(*asked, "b", "--json"))["stored_after"]["num_tokens"] == 8
        assert "block store" not in bench.explain(*asked, "c")
        assert json.loads(bench.explain(*asked, "c", "--json"))["stored_after"]["num_tokens"] == 0
    ids = [str(code) for code in prompt.encode()]
    assert json.loads(bench.explain(*ids, "--json"))["stored_after"] is None


def test_a_text_is_encoded_and_shown_by_a_worker(bench: Bench, worker: str) -> None:
    bench.store(f"{SYSTEM} Where is Paris?")
    out = bench.explain("--text", f"{SYSTEM} Who is Paul?", "--worker", worker)
    assert f"at token {len(SYSTEM) + 3}\n    wanted   [111 32 105 115]  'o is'\n" in out
    assert "found    [101 114 101 32]  'ere '\n" in out


def test_messages_go_through_the_chat_template_and_come_from_a_file_or_standard_input(
    bench: Bench, worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.store("user: Hello\nassistant: Hi")
    messages = json.dumps([{"role": "user", "content": "Hello"}])
    file = tmp_path / "chat.json"
    file.write_text(messages)
    assert "23 of 23 tokens are cached: all of it is cached" in bench.explain(str(file), "--worker", worker)
    monkeypatch.setattr("sys.stdin", io.StringIO(messages))
    assert "23 of 23 tokens are cached" in bench.explain("-", "--worker", worker)
    file.write_text("[117, 115, 101, 114, 33]")
    assert "4 of 5 tokens are cached" in bench.explain(str(file))


def test_json_has_a_line_for_each_pool(bench: Bench) -> None:
    bench.store("AAAABBBB")
    with connect(bench.holder.address, PoolShape(8, 4, name="second")) as second:
        second.acquire(list(b"AAAACCCC"), seq_id=1)
        second.insert(1, 8)
        second.release(1)
        second.clear()
        ids = [str(code) for code in b"AAAAD"]
        first_line, second_line = map(json.loads, bench.explain(*ids, "--json").splitlines())
        assert (first_line["pool"], second_line["pool"]) == ("default", "second")
        assert first_line["cause"] == "parted"
        assert (first_line["num_prompt_tokens"], first_line["num_tokens"], first_line["num_siblings"]) == (5, 4, 1)
        assert (first_line["wanted"], first_line["found"]) == ([68], [66] * 4)
        assert second_line["evicted"] == {"num_tokens": 4, "ago_s": 0.0, "reason": "clear"}
        assert second_line["elsewhere"] is None
        assert json.loads(bench.explain(*ids, "--json", "--pool", "second")) == second_line


def test_the_workers_of_several_services_are_ranked_and_stats_list_their_load(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = WorkerLoad(5000, 1000.0, 3, is_accepting=True)
    config = ServiceConfig(addresses=("127.0.0.1:0",), lease_ttl_s=3600.0)
    with (
        ServiceThread(config) as service,
        connect(service.addresses[0], PoolShape(64, 4), load=lambda: busy) as second,
    ):
        for holder, address in ((bench.holder, "left:1"), (second, "right:1")):
            holder.announce(address, "f00d")
            wait_until(lambda holder=holder: holder.workers_all()["default"].generation_address)  # type: ignore[misc]
        bench.store("AAAABBBB")
        ids = [str(code) for code in b"AAAABBBBCC"]
        told = bench.explain(*ids, "--service", second.address)
        assert f"pool default of {bench.holder.address}, namespace default" in told
        assert told.endswith(
            "a gateway over these services would send it to\n"
            "  1. left:1: cost 0.01 s, 0.00 s of it backlog; 8 tokens cached\n"
            "  2. right:1: cost 5.04 s, 5.00 s of it backlog; 0 tokens cached\n"
        )
        ranking = json.loads(bench.explain(*ids, "--service", second.address, "--json").splitlines()[-1])["ranking"]
        assert [choice["worker"] for choice in ranking] == ["left:1", "right:1"]
        assert main(["stats", "--service", second.address]) == 0
    told = capsys.readouterr().out
    assert (
        "worker right:1: 5,000 prompt tokens to compute, prefill 1,000 tokens/s, 3 branches, takes new work (" in told
    )


def test_a_service_without_a_pool_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    with ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service:
        assert main(["explain", "1", "--service", service.addresses[0]]) == 0
    assert f"radixkv worker --service {service.addresses[0]}" in capsys.readouterr().out
