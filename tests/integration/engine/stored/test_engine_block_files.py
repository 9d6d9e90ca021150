"""Export and import: what one worker has computed another one finds, and a bad file changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import safetensors.numpy
from guarded import tenant_row
from resp_servers import RedisServer, needs_redis
from stored_engine import BLOCK, ask, draw, open_store, serving
from waiting import wait_until

from radixkv import PrefixCache, pack_tokens
from radixkv.client import Credentials
from radixkv.core.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    LimitError,
    PermissionDeniedError,
    RadixKVError,
    UnavailableError,
)
from radixkv.generation.client import GenerationClient
from radixkv.net.tls import Security
from radixkv.stores.costs import PrefillCost, PrefillMeter
from radixkv.stores.disk import DiskLevel
from radixkv.testing.hash_model import HashRunner
from radixkv.v1 import generation_pb2 as pb
from radixkv.v1 import generation_pb2_grpc
from radixkv.worker import server as worker_server
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer

PROMPT = draw(1, 50)


@pytest.fixture(autouse=True)
def slow_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    """This model computes faster than a busy machine reads: a block is said to take two seconds."""
    monkeypatch.setattr(PrefillMeter, "cost", lambda _meter: PrefillCost(2 / BLOCK, 0.0))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The export of `PROMPT`."""
    with serving(tmp_path_factory.mktemp("exporter")) as engine:
        ask(engine, PROMPT)
        return b"".join(engine.export(PROMPT))


def tokens_of(file: bytes) -> list[int]:
    return [int(token) for token in safetensors.numpy.load(file)["tokens"]]


def num_stored(engine: Engine) -> int:
    return engine.store.disk.stats().num_blocks  # type: ignore[attr-defined,no-any-return]


def test_what_one_worker_has_exported_another_one_finds_under_a_namespace_of_its_own(
    tmp_path: Path, file: bytes
) -> None:
    assert tokens_of(file) == PROMPT[:48]
    with serving(tmp_path) as engine:
        assert tuple(engine.import_(file, "theirs")) == (48, 48)
        assert ask(engine, PROMPT).usage.num_cached_tokens == 0
        usage = ask(engine, PROMPT, namespace="theirs").usage
        assert usage.num_cached_tokens == 48
        assert usage.num_computed_tokens == 2 + 5
    with serving(tmp_path) as engine:
        assert ask(engine, PROMPT, namespace="theirs").usage.num_cached_tokens == 48


def test_an_import_may_be_repeated_and_is_exported_from_the_store_as_it_was(tmp_path: Path, file: bytes) -> None:
    with serving(tmp_path) as engine:
        for _ in range(2):
            assert tuple(engine.import_([file[:100], file[100:]])) == (48, 48)
        assert num_stored(engine) == 12
        assert b"".join(engine.export(PROMPT)) == file


def test_a_history_of_which_a_part_was_evicted_is_taken_from_pool_and_store(tmp_path: Path) -> None:
    others = [draw(seed, 40) for seed in range(2, 6)]
    with serving(tmp_path, num_blocks=24, num_rows=100) as engine:
        reply = ask(engine, PROMPT, 20).branches[0].tokens
        wait_until(lambda: num_stored(engine) >= 17)
        for prompt in others:
            ask(engine, prompt)
        ask(engine, PROMPT[:20], 1)
        history = PROMPT + reply
        whole = b"".join(engine.export(history))
        assert tokens_of(whole) == history[: (len(history) - 1) // BLOCK * BLOCK]
    with serving(tmp_path / "second") as engine:
        engine.import_(whole)
        assert ask(engine, history).usage.num_cached_tokens == (len(history) - 1) // BLOCK * BLOCK


def test_the_longest_part_that_is_cached_is_exported(tmp_path: Path) -> None:
    with serving(tmp_path) as engine:
        ask(engine, PROMPT, 1)
        assert tokens_of(b"".join(engine.export(PROMPT[:22] + draw(9, 40)))) == PROMPT[:20]


def test_exports_beside_requests_hold_whole_blocks_and_lose_no_row(tmp_path: Path) -> None:
    prompts = [draw(seed, 60) for seed in range(20, 26)]
    failures: list[Exception] = []
    with serving(tmp_path, num_blocks=40, num_rows=10) as engine, serving(tmp_path / "second") as second:
        is_over, has_come = threading.Event(), threading.Event()

        def export() -> None:
            while not is_over.is_set():
                for prompt in prompts:
                    try:
                        second.import_(engine.export(prompt))
                        has_come.set()
                    except InvalidArgumentError as error:
                        if "not cached" not in str(error):
                            failures.append(error)

        thread = threading.Thread(target=export)
        thread.start()
        num_rounds = 0
        while num_rounds < 2 or not (has_come.is_set() or failures):
            num_rounds += 1
            for prompt in prompts:
                ask(engine, prompt)
        is_over.set()
        thread.join()
        assert not failures
        assert sum(ask(second, prompt).usage.num_cached_tokens for prompt in prompts) > 0  # `ask` compares every token


def test_what_may_not_be_shared_is_not_exported(tmp_path: Path) -> None:
    with serving(tmp_path) as engine:
        ask(engine, PROMPT, namespace="one")
        ask(engine, PROMPT[::-1], sharing="off")
        for tokens, namespace in ((PROMPT, "default"), (PROMPT, "two"), (PROMPT[::-1], "default")):
            with pytest.raises(InvalidArgumentError, match="tokens is '50 token ids, whose first block is not cached'"):
                engine.export(tokens, namespace)
        engine.erase("one")
        with pytest.raises(InvalidArgumentError, match="not cached"):
            engine.export(PROMPT, "one")


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "tokens is '0 token ids'; it must be between 4 and 4,096"),
        ([1, 2, 3], "tokens is '3 token ids'; it must be between 4 and 4,096"),
        (bytes(4_000_000), "tokens is '1,000,000 token ids'; it must be between 4 and 4,096"),
        (b"12345", "a whole number of 4-byte token ids"),
    ],
)
def test_tokens_outside_their_bounds_are_rejected(tmp_path: Path, tokens: Any, message: str) -> None:
    with serving(tmp_path) as engine, pytest.raises(InvalidArgumentError, match=message):
        engine.export(tokens)


def _altered(file: bytes, at: int) -> bytes:
    return file[:at] + bytes([file[at] ^ 1]) + file[at + 1 :]


BAD = {
    "empty": lambda _file: b"",
    "cut": lambda file: file[:-1],
    "cut to two thirds": lambda file: file[: len(file) * 2 // 3],
    "longer": lambda file: file + b"\0",
    "a token altered": lambda file: _altered(file, 8 + int.from_bytes(file[:8], "little")),
    "a block altered": lambda file: _altered(file, len(file) - 1),
    "a pickle": lambda _file: b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00.",
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_file_is_rejected_by_name_and_stores_nothing(tmp_path: Path, file: bytes, bad: str) -> None:
    with serving(tmp_path) as engine:
        with pytest.raises(InvalidArgumentError, match=r"^file"):
            engine.import_(BAD[bad](file))
        assert num_stored(engine) == 0
        assert ask(engine, PROMPT).usage.num_cached_tokens == 0


def test_another_models_file_is_rejected(tmp_path: Path, file: bytes) -> None:
    with serving(tmp_path, fingerprint=b"other of 16 byte") as engine:
        with pytest.raises(InvalidArgumentError, match=r"file's fingerprint is .*this worker's"):
            engine.import_(file)
        assert num_stored(engine) == 0


def test_a_longer_history_than_the_models_is_rejected(tmp_path: Path, file: bytes) -> None:
    runner = HashRunner(20, BLOCK, max_model_len=47)
    store = open_store(tmp_path, runner)
    try:
        with (
            Engine(runner, PrefixCache(20, BLOCK), store=store) as engine,
            pytest.raises(InvalidArgumentError, match=r"'48 token ids'; .* at most 44 in all"),
        ):
            engine.import_(file)
    finally:
        store.close()


def test_where_the_store_is_smaller_than_the_file_its_first_blocks_are_stored(tmp_path: Path) -> None:
    prompt = draw(3, 400)
    with serving(tmp_path / "first", num_blocks=120) as engine:
        ask(engine, prompt)
        whole = b"".join(engine.export(prompt))
    with serving(tmp_path / "small", num_blocks=120, size_bytes=60 * 672) as engine:
        imported = engine.import_(whole)
        assert imported.num_tokens == 400
        assert 0 < imported.num_stored_tokens < 400
        assert ask(engine, prompt).usage.num_cached_tokens == imported.num_stored_tokens


def test_a_failing_disk_is_reported_and_not_raised(
    tmp_path: Path, file: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path) as engine:
        monkeypatch.setattr(DiskLevel, "write", lambda _level, _blocks: 0)
        assert tuple(engine.import_(file)) == (48, 0)


def test_without_a_store_or_with_an_unknown_adapter_both_are_rejected(tmp_path: Path, file: bytes) -> None:
    with Engine(HashRunner(8, BLOCK), PrefixCache(8, BLOCK)) as engine:
        for call in (lambda: engine.export(PROMPT), lambda: engine.import_(file)):
            with pytest.raises(UnavailableError, match="--disk-cache"):
                call()
    with serving(tmp_path) as engine:
        for call in (lambda: engine.export(PROMPT, "a#adapter=sql"), lambda: engine.import_(file, "a#adapter=sql")):
            with pytest.raises(InvalidArgumentError, match="namespace"):
                call()


@needs_redis
def test_a_remote_level_alone_takes_an_import_and_gives_an_export(tmp_path: Path, file: bytes) -> None:
    redis = RedisServer(tmp_path)
    try:
        with serving(tmp_path, remote=redis.url, has_disk=False) as engine:
            assert tuple(engine.import_(file)) == (48, 48)
            assert b"".join(engine.export(PROMPT)) == file
            assert ask(engine, PROMPT).usage.num_cached_tokens == 48
    finally:
        redis.stop()


# -- over gRPC ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    rows = [
        tenant_row("holder", "holder", namespace="mine", roles=["holder"]),
        tenant_row("admin", "admin", namespace="mine", roles=["admin"]),
        tenant_row("client", "client", namespace="mine", roles=["client", "reader"]),
    ]
    path = tmp_path / "keys.toml"
    path.write_text("\n".join(rows))
    return path


@pytest.fixture
def address(tmp_path: Path, keys: Path) -> Iterator[str]:
    with (
        serving(tmp_path / "served") as engine,
        GenerationServer(engine, "127.0.0.1:0", security=Security(keys_file=keys)) as server,
    ):
        for namespace in ("mine", "theirs"):
            ask(engine, PROMPT, namespace=namespace)
        yield server.address


def client_of(address: str, key: str) -> GenerationClient:
    return GenerationClient(address, credentials=Credentials(token=key))


def test_a_file_goes_over_the_wire_both_ways(address: str, file: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixkv.generation.block_file.MAX_CHUNK_BYTES", 100)
    with client_of(address, "holder") as client:
        pieces = list(client.export(PROMPT, "mine"))
        assert b"".join(pieces) == file
        assert max(map(len, pieces)) == 100
        assert tuple(client.import_(file, "mine#salt=0")) == (48, 48)
        assert b"".join(client.export(PROMPT, "mine#salt=0")) == file
        for bad in BAD.values():
            with pytest.raises(InvalidArgumentError, match=r"^file"):
                client.import_(bad(file), "mine")
        with pytest.raises(InvalidArgumentError, match="1,000,000"):
            list(client.export(bytes(4_000_000), "mine"))


def test_holders_and_admins_export_and_import_in_namespaces_that_they_may_name(address: str, file: bytes) -> None:
    def outcome(call: Callable[[str], object], namespace: str) -> type[RadixKVError] | None:
        try:
            call(namespace)
        except RadixKVError as error:
            return type(error)
        return None

    outcomes = {}
    for key in ("holder", "admin", "client"):
        with client_of(address, key) as client:
            calls = (lambda name, client=client: list(client.export(PROMPT, name)), partial(client.import_, file))
            for namespace in ("mine", "theirs", "default"):
                outcomes[key, namespace] = [outcome(call, namespace) for call in calls]
    denied = [PermissionDeniedError] * 2
    assert outcomes == {
        ("holder", "mine"): [None, None],
        ("holder", "theirs"): denied,
        ("holder", "default"): denied,
        ("admin", "mine"): [None, None],
        ("admin", "theirs"): [None, None],
        ("admin", "default"): [InvalidArgumentError, None],  # nothing is cached there
        ("client", "mine"): denied,
        ("client", "theirs"): denied,
        ("client", "default"): denied,
    }


def test_an_endless_file_is_rejected_as_soon_as_its_header_is_read(address: str, file: bytes) -> None:
    num_read = 0

    def endless() -> Iterator[bytes]:
        nonlocal num_read
        yield file
        while True:
            num_read += 1
            yield bytes(100_000)

    with client_of(address, "admin") as client, pytest.raises(InvalidArgumentError, match="longer than"):
        client.import_(endless())
    assert num_read < 1000


def test_an_import_that_stalls_ends_and_others_do_not_wait_for_it(
    address: str, file: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_server, "REQUEST_S", 1.0)
    is_over = threading.Event()

    def stalling() -> Iterator[pb.ImportRequest]:
        yield pb.ImportRequest(namespace="mine", chunk=file[:100])
        is_over.wait(300)

    with grpc.insecure_channel(address) as channel, client_of(address, "holder") as client:
        stub: Any = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]
        metadata = (("authorization", "Bearer admin"),)
        stalled = [stub.Import.future(stalling(), metadata=metadata) for _ in range(2)]
        assert imported(client, file) == (48, 48)
        codes = {call.exception(300).code() for call in stalled}
        is_over.set()
        assert grpc.StatusCode.DEADLINE_EXCEEDED in codes
        assert codes <= {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}
        cancelled = stub.Import.future(stalling(), metadata=metadata)
        cancelled.cancel()
        assert imported(client, file) == (48, 48)


def imported(client: GenerationClient, file: bytes) -> tuple[int, ...]:
    """Again where this machine was as late as a caller who stalls."""
    while True:
        with suppress(DeadlineExceededError):
            return tuple(client.import_(file, "mine"))


def test_exports_whose_callers_have_left_count_until_they_have_ended(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    export, may_go, begun = Engine.export, threading.Event(), threading.Semaphore(0)

    def late(engine: Engine, *arguments: Any) -> list[bytes]:
        begun.release()
        may_go.wait(300)
        return export(engine, *arguments)

    monkeypatch.setattr(Engine, "export", late)
    with grpc.insecure_channel(address) as channel, client_of(address, "admin") as client:
        stub: Any = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]
        request = pb.ExportRequest(token_ids=pack_tokens(PROMPT), namespace="mine")
        for _ in range(2):
            left = stub.Export(request, metadata=(("authorization", "Bearer admin"),))
            assert begun.acquire(timeout=300)
            left.cancel()
        with pytest.raises(LimitError, match="files are exported or imported already"):
            list(client.export(PROMPT, "mine"))
        may_go.set()
        wait_until(lambda: is_free(client))


def is_free(client: GenerationClient) -> bool:
    try:
        return bool(list(client.export(PROMPT, "mine")))
    except LimitError:
        return False


def test_an_import_of_no_message_and_one_of_garbage_are_rejected(address: str) -> None:
    metadata = (("authorization", "Bearer admin"),)
    with grpc.insecure_channel(address) as channel:
        send = channel.stream_unary("/radixkv.v1.Generation/Import")
        for messages in ([], [b"\xff\xff\xff"], [pb.ImportRequest().SerializeToString(), b"\xff\xff\xff"]):
            with pytest.raises(grpc.RpcError) as failed:
                send(iter(messages), metadata=metadata, timeout=300)
            assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
