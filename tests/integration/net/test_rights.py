"""Who may call what: every role, every RPC, in its own namespace, in another's, in none, without a key and with a wrong one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from guarded import (
    KV_EVENT_METHODS,
    MINE,
    MY_TOKENS,
    ROLES,
    THEIR_TOKENS,
    THEIRS,
    Method,
    Site,
    guarded_site,
    methods,
)

from radixkv import (
    InvalidArgumentError,
    PermissionDeniedError,
    PoolHeldError,
    PoolShape,
    connect,
    pack_tokens,
)
from radixkv.client import Credentials
from radixkv.net.calls.auth import Guard
from radixkv.net.tenants import KeyRing
from radixkv.v1 import types_pb2 as types
from radixkv.v1 import workers_pb2 as workers

OK, DENIED = grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED
UNKNOWN_CALLER, NOT_FOUND = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.NOT_FOUND

C, R, H = "client", "reader", "holder"
# What who has one role alone may do: in its own namespace; and what naming another's, or none at all, gives those who may.
EXPECTED: dict[str, tuple[set[str], grpc.StatusCode, grpc.StatusCode]] = {
    "/radixkv.v1.Workers/Attach": ({H}, OK, OK),  # of each op by itself: see below
    "/radixkv.v1.PrefixCache/Match": ({R}, DENIED, DENIED),
    "/radixkv.v1.PrefixCache/Route": ({C, R}, DENIED, DENIED),
    "/radixkv.v1.PrefixCache/Explain": ({R}, DENIED, DENIED),
    "/radixkv.v1.PrefixCache/Evict": (set(), DENIED, DENIED),
    "/radixkv.v1.PrefixCache/EvictBranch": ({C}, DENIED, DENIED),
    "/radixkv.v1.PrefixCache/Clear": ({C}, DENIED, DENIED),
    "/radixkv.v1.PrefixCache/Pin": ({C}, DENIED, DENIED),
    "/radixkv.v1.PrefixCache/Unpin": ({C}, DENIED, DENIED),
    "/radixkv.v1.PrefixCache/Pins": ({R}, DENIED, DENIED),
    "/radixkv.v1.PrefixCache/Retain": ({C}, DENIED, DENIED),
    "/radixkv.v1.PrefixCache/SetQuota": (set(), DENIED, DENIED),
    "/radixkv.v1.PrefixCache/Usage": ({R}, DENIED, DENIED),
    "/radixkv.v1.PrefixCache/Stats": ({R, H}, OK, OK),
    "/radixkv.v1.PrefixCache/Check": (set(), DENIED, DENIED),
    "/radixkv.v1.PrefixCache/Dump": ({R}, DENIED, DENIED),
    "/radixkv.v1.PrefixCache/Events": ({R}, DENIED, DENIED),
    "/radixkv.v1.Generation/Generate": ({C}, DENIED, OK),
    "/radixkv.v1.Generation/ForkGeneration": ({C}, NOT_FOUND, NOT_FOUND),
    "/radixkv.v1.Generation/GetModel": ({C, R, H}, OK, OK),
    "/radixkv.v1.Generation/Tokenize": ({C, R, H}, DENIED, OK),  # it takes a turn of the namespace's
    "/radixkv.v1.Generation/Detokenize": ({C, R, H}, OK, OK),
    "/radixkv.v1.Generation/SpellTokens": ({C, R, H}, OK, OK),
    "/radixkv.v1.Generation/GetStats": ({C, R, H}, OK, OK),
    "/radixkv.v1.Generation/FindStored": ({R}, DENIED, DENIED),
    "/radixkv.v1.Generation/Erase": ({C}, DENIED, DENIED),
    "/radixkv.v1.Generation/VerifyBlock": (set(), DENIED, DENIED),
    "/radixkv.v1.Generation/Export": ({H}, DENIED, DENIED),
    "/radixkv.v1.Generation/Import": ({H}, DENIED, DENIED),
    **dict.fromkeys(KV_EVENT_METHODS, ({R}, DENIED, DENIED)),
}
METHODS = methods()
# Without text there is neither a tokenizer nor a spelling in this worker; who may ask is told so.
# Nor has it a block store.
NO_STORE = {f"/radixkv.v1.Generation/{name}" for name in ("Erase", "Export", "Import")}
NO_TEXT = {f"/radixkv.v1.Generation/{name}" for name in ("Detokenize", "SpellTokens")}
FIELDS: dict[str, dict[str, Any]] = {
    "Pin": {"ttl_s": 60.0},
    "Evict": {"num_blocks": 0},
    "Detokenize": {"token_ids": pack_tokens([1])},
    "SpellTokens": {"token_ids": pack_tokens([1])},
    "VerifyBlock": {"token_ids": pack_tokens([1, 2, 3, 4])},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with guarded_site(tmp_path_factory.mktemp("guarded")) as site:
        yield site


def uncovered(found: dict[str, Method]) -> set[str]:
    """Methods of which the table above says nothing, and rows that are of no method."""
    return set(found) ^ set(EXPECTED)


def test_the_table_names_every_method_there_is() -> None:
    assert uncovered(METHODS) == set()
    assert uncovered({**METHODS, "/radixkv.v1.PrefixCache/Planted": METHODS[KV_EVENT_METHODS[0]]}) == {
        "/radixkv.v1.PrefixCache/Planted"
    }


def test_a_method_without_a_rule_is_denied_to_everybody(site: Site) -> None:
    async def serve() -> list[tuple[grpc.StatusCode, str]]:
        async def planted(_request: bytes, _context: Any) -> bytes:
            return b"reached"

        server = grpc.aio.server(interceptors=[Guard(KeyRing(site.keys))])
        handler = grpc.unary_unary_rpc_method_handler(planted)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("radixkv.v1.PrefixCache", {"Planted": handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        ends = []
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for role in ROLES:
                call = channel.unary_unary("/radixkv.v1.PrefixCache/Planted")
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await call(b"", metadata=(("authorization", f"Bearer {role}"),))
                ends.append((failed.value.code(), failed.value.details()))
        await server.stop(None)
        return ends

    assert [code for code, _ in asyncio.run(serve())] == [DENIED] * len(ROLES)


def requests_of(site: Site, method: Method, namespace: str | None) -> list[Message]:
    """Messages of a call that would succeed, with a namespace where there is a place for one."""
    if method.name.endswith("/Attach"):
        return attachment("own", namespace)
    name = method.name.rpartition("/")[2]
    request = method.request(**FIELDS.get(name, {}))
    fields = method.request.DESCRIPTOR.fields_by_name
    if "namespace" in fields and namespace is not None:
        request.namespace = namespace  # type: ignore[attr-defined]
    if "tokens" in fields:
        request.tokens = pack_tokens([9, 9, 9])  # type: ignore[attr-defined]
    if name in ("Generate", "Tokenize"):
        request.prompt.token_ids = pack_tokens([1, 2, 3])  # type: ignore[attr-defined]
    if name == "ForkGeneration":
        request.generation_id = site.generations[namespace] if namespace else "unheard-of"  # type: ignore[attr-defined]
    if "sampling" in fields:
        request.sampling.max_tokens = 1  # type: ignore[attr-defined]
    return [request]


def attachment(pool: str, *namespaces: str | None) -> list[Message]:
    """A holder's whole stream: it attaches, opens a sequence in each namespace, and leaves."""
    step = workers.Step(number=1)
    for seq_id, namespace in enumerate(namespaces, 1):
        step.ops.add().acquire.CopyFrom(workers.Acquire(tokens=pack_tokens([7, 8]), namespace=namespace, seq_id=seq_id))
        step.ops.add().release.CopyFrom(workers.Release(seq_id=seq_id))
    shape = types.PoolShape(name=pool, num_blocks=8, block_size=16)
    hello = workers.Hello(pool=shape, incarnation=next(_INCARNATIONS))
    messages = ({"hello": hello}, {"step": step}, {"goodbye": workers.Goodbye()})
    return [workers.AttachRequest(**message) for message in messages]  # type: ignore[arg-type]


_INCARNATIONS = itertools.count(0x5EC0)


def metadata_of(method: Method, namespace: str | None) -> list[tuple[str, str]]:
    if method.name not in KV_EVENT_METHODS:
        return []
    return [("radixkv-pool", "filled"), *([("radixkv-namespace", namespace)] if namespace else [])]


def call(site: Site, name: str, namespace: str | None, key: str | None) -> tuple[grpc.StatusCode, list[Any], str]:
    method = METHODS[name]
    most = 1 if name in KV_EVENT_METHODS else 1000
    return site.call(method, requests_of(site, method, namespace), key, metadata_of(method, namespace), most)


def outcome(name: str, code: grpc.StatusCode) -> grpc.StatusCode:
    """Whether a call got past the guard: it then ends as this worker, which knows no text and has no block store, ends it."""
    if name in NO_STORE and code is grpc.StatusCode.UNAVAILABLE:
        return OK
    return OK if name in NO_TEXT and code is grpc.StatusCode.INVALID_ARGUMENT else code


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_do_what_is_its_own_and_nothing_else(site: Site, role: str, name: str) -> None:
    roles, elsewhere, everywhere = EXPECTED[name]
    is_admin = role == "admin"
    may = is_admin or role in roles
    expected = {
        MINE: OK if may else DENIED,
        THEIRS: OK if is_admin else elsewhere if may else DENIED,
        None: OK if is_admin else everywhere if may else DENIED,
    }
    if name.endswith("/ForkGeneration"):
        expected[None] = NOT_FOUND if may else DENIED
    got = {namespace: outcome(name, call(site, name, namespace, role)[0]) for namespace in expected}
    assert got == expected


@pytest.mark.parametrize("name", METHODS)
def test_without_a_key_and_with_a_wrong_one_nothing_is_served_and_the_answer_is_the_same(site: Site, name: str) -> None:
    answers = [
        call(site, name, namespace, key)
        for namespace in (MINE, THEIRS, None)
        for key in (None, "", "wrong", "sha256:" + "0" * 64)
    ]
    assert {code for code, _, _ in answers} == {UNKNOWN_CALLER}
    assert len({details for _, _, details in answers}) == 1
    assert not any(told for _, told, _ in answers)


def test_a_call_that_cannot_be_parsed_is_refused_before_it_is(site: Site) -> None:
    with grpc.insecure_channel(site.service.addresses[0]) as channel, pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary("/radixkv.v1.PrefixCache/Match")(b"\xff\xff\xff", timeout=300)
    assert failed.value.code() is UNKNOWN_CALLER


def test_health_is_open_and_reflection_is_for_whoever_is_known(site: Site) -> None:
    for address in (site.service.addresses[0], site.worker.address):
        with grpc.insecure_channel(address) as channel:
            assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=300)
            reflect = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
            request = b"\x3a\x01*"  # list_services
            with pytest.raises(grpc.RpcError) as failed:
                next(reflect(iter([request]), timeout=300))
            assert failed.value.code() is UNKNOWN_CALLER
            assert b"radixkv" in next(
                reflect(iter([request]), metadata=(("authorization", "Bearer client"),), timeout=300)
            )


# -- content


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


ALL_OF_THEM = {f"/radixkv.v1.PrefixCache/{name}" for name in ("Pins", "Usage", "Dump", "Events")} | {*KV_EVENT_METHODS}
"""What these mean where no namespace is named; the others mean the default one, or the caller's own."""


@pytest.mark.parametrize("name", METHODS)
def test_a_tenant_of_the_default_namespace_has_that_one_and_no_other(site: Site, name: str) -> None:
    site.fill()
    roles, elsewhere, _ = EXPECTED[name]
    is_fork = name.endswith("/ForkGeneration")
    expected = {
        "default": OK if roles else DENIED,
        THEIRS: elsewhere if roles else DENIED,
        None: DENIED if not roles or name in ALL_OF_THEM else NOT_FOUND if is_fork else OK,
    }
    if is_fork:
        del expected["default"]
    for namespace, code in expected.items():
        got, answers, details = call(site, name, namespace, "plain")
        assert (namespace, outcome(name, got)) == (namespace, code)
        told = b"".join(answer.SerializeToString() for answer in answers) + details.encode()
        assert MINE.encode() not in told
        assert not any(
            token.to_bytes(4, "little") in told or varint(token) in told for token in THEIR_TOKENS + MY_TOKENS
        )


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("role", [*ROLES[:3]])
def test_no_answer_holds_anything_of_another_tenant(site: Site, role: str, name: str) -> None:
    site.fill()
    for namespace in (MINE, None):
        _, answers, details = call(site, name, namespace, role)
        told = b"".join(answer.SerializeToString() for answer in answers) + details.encode()
        assert THEIRS.encode() not in told
        for token_id in THEIR_TOKENS:
            assert token_id.to_bytes(4, "little") not in told
            assert varint(token_id) not in told


def test_what_is_ones_own_is_told(site: Site) -> None:
    """The test above would see content if there were any."""
    site.fill()
    for name in ("/radixkv.v1.PrefixCache/Dump", "/radixkv.v1.PrefixCache/Events", KV_EVENT_METHODS[0]):
        everything = b"".join(answer.SerializeToString() for answer in call(site, name, None, "admin")[1])
        assert THEIRS.encode() in everything
        told = b"".join(answer.SerializeToString() for answer in call(site, name, MINE, "reader")[1])
        assert any(token_id.to_bytes(4, "little") in told or varint(token_id) in told for token_id in MY_TOKENS), (
            f"{name} told nothing"
        )


def test_an_explanation_compares_with_no_namespace_of_others(site: Site) -> None:
    site.fill()
    with connect(site.service.addresses[0], pool_name="filled", credentials=Credentials(token="reader")) as reader:
        assert reader.explain(MY_TOKENS, namespace=MINE).num_tokens == len(MY_TOKENS)
        with pytest.raises(PermissionDeniedError):
            reader.explain(THEIR_TOKENS, namespace=MINE, other_namespaces=[THEIRS])


def test_the_answer_to_a_fork_is_that_to_an_unknown_generation(site: Site) -> None:
    name = "/radixkv.v1.Generation/ForkGeneration"
    method = METHODS[name]
    theirs = site.generations[THEIRS]
    code, answers, details = site.call(method, [method.request(generation_id=theirs)], "client")  # type: ignore[call-arg]
    other_code, _, other_details = site.call(method, [method.request(generation_id="f" * 32)], "client")  # type: ignore[call-arg]
    assert (code, answers) == (other_code, []) == (NOT_FOUND, [])
    assert details.replace(theirs, "ID") == other_details.replace("f" * 32, "ID")


def test_an_answer_stored_for_one_caller_is_no_answer_to_another(site: Site) -> None:
    site.fill()
    method = METHODS["/radixkv.v1.PrefixCache/EvictBranch"]
    fields = {"request_id": "same", "pool": "filled", "tokens": pack_tokens(MY_TOKENS)}
    code, [answer], _ = site.call(method, [method.request(**fields, namespace=MINE)], "client")
    assert (code, answer.pools[0].num_blocks) == (OK, 3)
    code, [answer], _ = site.call(method, [method.request(**fields, namespace=THEIRS)], "other")
    assert (code, answer.pools[0].num_blocks) == (OK, 0)
    code, [answer], _ = site.call(method, [method.request(**fields, namespace=MINE)], "client")
    assert (code, answer.pools[0].num_blocks) == (OK, 3)


# -- holders


def test_an_op_in_a_namespace_of_others_fails_alone(site: Site) -> None:
    method = METHODS["/radixkv.v1.Workers/Attach"]
    code, answers, _ = site.call(method, attachment("own", MINE, THEIRS, f"{MINE}#adapter=a", None), "holder")
    assert code is OK
    kinds = [result.error.code or result.WhichOneof("result") for result in answers[1].step_answer.results]
    denied, aborted = types.ERROR_CODE_PERMISSION_DENIED, types.ERROR_CODE_ABORTED
    assert kinds == ["acquire", "release", denied, aborted, "acquire", "release", denied, aborted]


NAMING_OPS = [field.name for field in workers.Op.DESCRIPTOR.fields if "namespace" in field.message_type.fields_by_name]


def test_every_op_that_names_a_namespace_is_checked(site: Site) -> None:
    assert {"acquire", "match", "pin"} <= set(NAMING_OPS)
    hello, step, goodbye = attachment("ops")
    for name in NAMING_OPS:
        getattr(step.step.ops.add(), name).namespace = THEIRS  # type: ignore[attr-defined]
    code, answers, _ = site.call(METHODS["/radixkv.v1.Workers/Attach"], [hello, step, goodbye], "holder")
    assert code is OK
    told = [result.error.code for result in answers[1].step_answer.results]
    assert told == [types.ERROR_CODE_PERMISSION_DENIED] * len(NAMING_OPS)


def test_a_holder_attaches_to_the_pools_it_was_given(site: Site) -> None:
    credentials, address = Credentials(token="narrow"), site.service.addresses[0]
    with pytest.raises(PermissionDeniedError, match="may not hold pool 'another'"):
        connect(address, PoolShape(8, name="another"), credentials=credentials)
    with connect(address, PoolShape(8, name="theirs"), credentials=credentials) as holder:
        holder.acquire([1], namespace="narrow")


def test_a_life_of_a_pool_goes_on_for_its_own_holder_alone(site: Site) -> None:
    address = site.service.addresses[0]
    with connect(address, PoolShape(8, name="own"), credentials=Credentials(token="holder")) as holder:
        holder.acquire([1], namespace=MINE)
        with pytest.raises(PoolHeldError):
            connect(
                address,
                PoolShape(8, name="own"),
                incarnation=holder.incarnation,
                credentials=Credentials(token="feeder"),
            )
        holder.interrupt()
        assert holder.step([]) == []


def test_a_token_is_not_sent_in_plaintext_to_another_machine() -> None:
    for address in ("192.0.2.1:50051", "cache.example:50051", "0.0.0.0:50051"):
        with pytest.raises(InvalidArgumentError, match="never sent in plaintext"):
            connect(address, credentials=Credentials(token="secret"))
    with connect("192.0.2.1:50051"), connect("localhost:1", credentials=Credentials(token="secret")):
        pass
    assert "secret" not in repr(Credentials(token="secret"))
