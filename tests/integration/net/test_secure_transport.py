"""TLS and mutual TLS of all three servers, and the addresses that they refuse to listen on without protection."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import Authority, Certificate
from chat_stack import gateway, keys_file
from guarded import tenant_row

from radixkv import (
    InvalidArgumentError,
    PermissionDeniedError,
    PoolShape,
    PrefixCache,
    UnauthenticatedError,
    UnavailableError,
    connect,
)
from radixkv.cli import main
from radixkv.client import Credentials, RemoteReader
from radixkv.gateway.config import GatewayConfig
from radixkv.generation.client import GenerationClient
from radixkv.net.tenants import KeyRing
from radixkv.service import Security, ServerTls, ServiceConfig, ServiceThread
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer

LOCAL = "127.0.0.1:0"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(HashRunner(16, 4), PrefixCache(16, 4), model_name="hash") as engine:
        yield engine


def tls_of(shown: Certificate, client_ca: Authority | None = None) -> ServerTls:
    ca_file = client_ca.own.certificate if client_ca else None
    return ServerTls(certificate_file=shown.certificate, key_file=shown.key, client_ca_file=ca_file)


def trusting(authority: Authority, shown: Certificate | None = None, token: str | None = None) -> Credentials:
    return Credentials(
        token=token,
        ca_file=authority.own.certificate,
        certificate_file=shown.certificate if shown else None,
        key_file=shown.key if shown else None,
    )


def common_name(address: str, authority: Authority) -> str:
    """Whom the certificate that a server shows is made out to."""
    context = ssl.create_default_context(cafile=str(authority.own.certificate))
    context.set_alpn_protocols(["h2"])
    host, port = address.split(":")
    with (
        socket.create_connection((host, int(port)), timeout=300) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        shown = secured.getpeercert()
    assert shown is not None
    [[(_, name)]] = shown["subject"]  # type: ignore[misc]
    return str(name)


def test_both_grpc_servers_speak_tls_and_clients_check_who_they_are(
    authority: Authority, engine: Engine, tmp_path: Path
) -> None:
    security = Security(tls=tls_of(authority.issue("server")))
    stranger = Authority.make(tmp_path, "stranger")
    with (
        ServiceThread(ServiceConfig(addresses=(LOCAL,), security=security)) as service,
        GenerationServer(engine, LOCAL, security=security) as worker,
    ):
        address = service.addresses[0]
        with connect(address, PoolShape(8), credentials=trusting(authority)) as holder:
            assert holder.acquire([1, 2]).num_cached_tokens == 0
            assert holder.stats().num_sequences == 1
        with GenerationClient(worker.address, credentials=trusting(authority)) as client:
            assert client.model().name == "hash"
        for credentials in (None, trusting(stranger)):
            once: dict[str, Any] = {"timeout_s": 60, "credentials": credentials, "retries": False}
            with RemoteReader(address, **once) as reader, pytest.raises(UnavailableError):
                reader.stats_all()
            with GenerationClient(worker.address, **once) as client, pytest.raises(UnavailableError):
                client.model()


def test_with_mutual_tls_who_calls_is_known_by_the_certificate(authority: Authority, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    job, nobody = authority.issue("reading-job"), authority.issue("nobody")
    row = tenant_row("job", "job-key", namespace="team", roles=["reader"], certificates=["reading-job"])
    keys.write_text(row + tenant_row("feeder", "feeder", roles=["holder"], namespaces=["*"]))
    security = Security(tls=tls_of(authority.issue("server"), authority), keys_file=keys)
    with ServiceThread(ServiceConfig(addresses=(LOCAL,), security=security)) as service:
        address = service.addresses[0]
        with (
            connect(address, PoolShape(8), credentials=trusting(authority, nobody, "feeder")),  # a key goes before
            connect(address, credentials=trusting(authority, job)) as reader,
        ):
            assert reader.match([1], namespace="team").num_tokens == 0
            with pytest.raises(PermissionDeniedError):
                reader.match([1], namespace="others")
        with connect(address, credentials=trusting(authority, nobody)) as reader, pytest.raises(UnauthenticatedError):
            reader.stats_all()
        with (
            connect(address, credentials=trusting(authority, job, "wrong")) as reader,
            pytest.raises(UnauthenticatedError),
        ):
            reader.stats_all()
        with connect(address, timeout_s=2, credentials=trusting(authority)) as reader, pytest.raises(UnavailableError):
            reader.stats_all()


def test_a_certificate_is_replaced_while_it_is_served(authority: Authority, engine: Engine, tmp_path: Path) -> None:
    shown = Certificate(tmp_path / "shown.pem", tmp_path / "shown.key")

    def show(name: str) -> None:
        issued = authority.issue(name)
        os.replace(issued.key, shown.key)
        os.replace(issued.certificate, shown.certificate)

    show("first")
    security = Security(tls=tls_of(shown))
    config = GatewayConfig(listen=LOCAL, tls=security.tls)
    with (
        ServiceThread(ServiceConfig(addresses=(LOCAL,), security=security)) as service,
        GenerationServer(engine, LOCAL, security=security) as worker,
        gateway(engine, config) as server,
        connect(service.addresses[0], PoolShape(8), credentials=trusting(authority)) as holder,
    ):
        addresses = (service.addresses[0], worker.address, server.address)
        assert {common_name(address, authority) for address in addresses} == {"first"}
        show("second")
        assert {common_name(address, authority) for address in addresses[:2]} == {"second"}, "with the next handshake"
        until_s = time.monotonic() + 300
        while common_name(server.address, authority) != "second" and time.monotonic() < until_s:
            time.sleep(0.1)
        shown.key.write_text("not a key")
        assert {common_name(address, authority) for address in addresses} == {"second"}
        assert holder.match([1]).num_tokens == 0  # the connection of before goes on


def test_files_that_do_not_belong_together_are_refused_at_the_start(authority: Authority, engine: Engine) -> None:
    one, other = authority.issue("one"), authority.issue("another")
    tls = ServerTls(certificate_file=one.certificate, key_file=other.key)
    with pytest.raises(InvalidArgumentError, match="belong together"):
        ServiceThread(ServiceConfig(addresses=(LOCAL,), security=Security(tls=tls))).start()
    with pytest.raises(InvalidArgumentError, match="belong together"):
        GenerationServer(engine, LOCAL, security=Security(tls=tls)).start()
    with (
        pytest.raises(InvalidArgumentError, match="belong together"),
        gateway(engine, GatewayConfig(listen=LOCAL, tls=tls)),
    ):
        pass


def test_the_gateway_speaks_https(authority: Authority, engine: Engine, tmp_path: Path) -> None:
    keys = keys_file(tmp_path / "keys.toml")
    config = GatewayConfig(listen=LOCAL, keys_file=keys, tls=tls_of(authority.issue("gateway")))
    trust = ssl.create_default_context(cafile=str(authority.own.certificate))
    with gateway(engine, config) as server, httpx.Client(verify=trust) as client:
        assert server.url.startswith("https://")
        assert client.get(f"{server.url}/models").status_code == 401
        headers = {"Authorization": "Bearer red"}
        assert client.get(f"{server.url}/models", headers=headers).status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{server.url}/models")


# -- safe defaults


def test_no_server_listens_for_other_machines_without_protection(
    authority: Authority, engine: Engine, tmp_path: Path
) -> None:
    keys = keys_file(tmp_path / "keys.toml")
    tls, mutual = tls_of(authority.issue("server")), tls_of(authority.issue("server"), authority)
    refused = (Security(), Security(tls=tls), Security(keys_file=keys))
    allowed = (
        Security(allow_anonymous=True),
        Security(keys_file=keys, tls=tls),
        Security(keys_file=keys, allow_plaintext=True),
        Security(tls=mutual),
    )
    for security in refused:
        with pytest.raises(InvalidArgumentError, match="--allow-"):
            ServiceThread(ServiceConfig(addresses=("0.0.0.0:0",), security=security)).start()
        with pytest.raises(InvalidArgumentError, match="--allow-"):
            GenerationServer(engine, "0.0.0.0:0", security=security).start()
        config = GatewayConfig(listen="0.0.0.0:0", keys_file=security.keys_file, tls=security.tls)
        with pytest.raises(InvalidArgumentError, match="--allow-"), gateway(engine, config):
            pass
    asks_nobody = GatewayConfig(listen="0.0.0.0:0", tls=mutual)  # certificates are asked for over gRPC alone
    with pytest.raises(InvalidArgumentError, match="--allow-"), gateway(engine, asks_nobody):
        pass
    for security in allowed:
        with (
            ServiceThread(ServiceConfig(addresses=("0.0.0.0:0",), security=security)),
            GenerationServer(engine, "0.0.0.0:0", security=security),
        ):
            pass


@pytest.mark.parametrize("endpoint", ["tcp://*:0", "tcp://0.0.0.0:*", "tcp://192.0.2.1:5557"])
def test_kv_events_are_not_published_to_other_machines(endpoint: str) -> None:
    config = ServiceConfig(addresses=(LOCAL,), kv_events_endpoint=endpoint)
    with pytest.raises(InvalidArgumentError, match="--allow-anonymous"):
        ServiceThread(config).start()


def test_a_unix_socket_is_for_its_owner_alone(engine: Engine, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with (
            ServiceThread(ServiceConfig(addresses=(f"unix:{tmp_path}/s",), kv_events_endpoint=f"ipc://{tmp_path}/e")),
            GenerationServer(engine, f"unix:{tmp_path}/w"),
        ):
            for name in "swe":
                assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o600, name
    finally:
        os.umask(before)


# -- a browser as the way in


def test_a_page_whose_name_was_made_to_mean_this_machine_is_not_served(engine: Engine, tmp_path: Path) -> None:
    def statuses(config: GatewayConfig, *hosts: str) -> list[int]:
        with gateway(engine, config) as server:
            url, port = server.url, server.address.rpartition(":")[2]
            sent = [host.replace("PORT", port) for host in hosts]
            return [httpx.get(f"{url}/models", headers={"Host": host}).status_code for host in sent]

    own = ("127.0.0.1:PORT", "localhost:PORT", "LOCALHOST", "[::1]:PORT")
    assert statuses(GatewayConfig(listen=LOCAL), *own) == [200] * 4
    foreign = (
        "evil.example:PORT",
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:PORT",
        "192.0.2.7",
    )
    assert statuses(GatewayConfig(listen=LOCAL), *foreign) == [403] * 5
    assert statuses(
        GatewayConfig(listen=LOCAL, allow_hosts=("Desk.example",)), "desk.example:PORT", "evil.example"
    ) == [200, 403]
    with gateway(engine, GatewayConfig(listen=LOCAL)) as server:
        refused = httpx.get(server.page_url, headers={"Host": "evil.example"})
        assert refused.status_code == 403
        assert "--allow-host" in refused.text
        assert httpx.get(server.page_url + "health", headers={"Host": "evil.example"}).status_code == 200
    keyed = GatewayConfig(listen=LOCAL, keys_file=keys_file(tmp_path / "keys.toml"))
    assert statuses(keyed, "proxied.example") == [401]  # who has no key learns nothing, by whichever name


def test_a_page_of_elsewhere_changes_nothing(engine: Engine) -> None:
    def status(server_url: str, origin: str, kind: str = "application/json") -> int:
        body = b'{"model": "hash", "prompt": [1, 2], "max_tokens": 1}'
        sent = {"Origin": origin, "Content-Type": kind}
        return httpx.post(f"{server_url}/completions", headers=sent, content=body).status_code

    with gateway(engine, GatewayConfig(listen=LOCAL, cors_origins=("https://friend.example",))) as server:
        own = server.page_url.rstrip("/")
        assert [status(server.url, origin) for origin in (own, "https://friend.example")] == [200, 200]
        for origin in ("https://evil.example", "null", own.replace("http", "https") + "0"):
            assert {status(server.url, origin, kind) for kind in ("application/json", "text/plain")} == {403}
    with gateway(engine, GatewayConfig(listen=LOCAL, cors_origins=("*",))) as server:
        assert status(server.url, "https://anybody.example") == 200


# -- keys made by the command


def test_a_key_that_the_command_has_made_opens_what_it_says(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"

    def make(name: str, *flags: str) -> int:
        return main(["key", name, "--keys", str(keys), "--token-file", str(tmp_path / name), *flags])

    assert make("team") == 0
    assert make("board", "--role", "reader", "--names", "team", "--names", "other") == 0
    assert make("worker", "--role", "holder", "--role", "reader", "--all-namespaces") == 0
    before = keys.read_bytes()
    assert make("worker") == 1, "the file of the key is there already"
    assert make("owner", "--role", "king") == 1
    assert make("both", "--names", "x", "--all-namespaces") == 1
    assert keys.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["board", "keys.toml", "team", "worker"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    ring = KeyRing(keys)
    found = {name: ring.find((tmp_path / name).read_text().strip()) for name in ("team", "board", "worker")}
    assert [tenant and sorted(tenant.roles) for tenant in found.values()] == [
        ["client"],
        ["reader"],
        ["holder", "reader"],
    ]
    assert [tenant and tenant.may_name("other") for tenant in found.values()] == [False, True, True]


def test_the_command_replaces_the_keys_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, link = tmp_path / "real" / "keys.toml", tmp_path / "keys.toml"
    keys.parent.mkdir()
    link.symlink_to(keys)

    def make(name: str) -> int:
        return main(["key", name, "--keys", str(link), "--token-file", str(tmp_path / name)])

    assert make("one") == 0
    keys.chmod(0o640)
    before = keys.stat()
    with keys.open() as reading:  # whoever reads it meanwhile reads what there was
        assert make("two") == 0
        assert 'name = "two"' not in reading.read()
    assert stat.S_IMODE(keys.stat().st_mode) == 0o640
    assert keys.stat().st_ino != before.st_ino
    text = keys.read_text()
    assert (link.is_symlink(), text.count("[[tenant]]")) == (True, 2)

    def change(*_: object) -> str:
        keys.write_text(text + "# of somebody else\n")
        return "token"

    monkeypatch.setattr("radixkv.cli.commands.key._row", change)
    assert make("three") == 1
    assert keys.read_text() == text + "# of somebody else\n"
    assert {path.name for path in (*tmp_path.iterdir(), *keys.parent.iterdir())} == {"one", "two", "keys.toml", "real"}


def test_commands_send_the_key_of_a_file_that_a_flag_or_the_environment_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, token = tmp_path / "keys.toml", tmp_path / "reader"
    assert main(["key", "board", "--role", "reader", "--keys", str(keys), "--token-file", str(token)]) == 0
    with ServiceThread(ServiceConfig(addresses=(LOCAL,), security=Security(keys_file=keys))) as service:
        command = ["stats", "--service", service.addresses[0]]
        assert main(command) == 1
        assert "--token-file FILE" in capsys.readouterr().err
        assert main([*command, "--token-file", str(token)]) == 0
        monkeypatch.setenv("RADIXKV_TOKEN_FILE", str(token))
        assert main(command) == 0
        assert main([*command, "--tls-client-cert", str(token)]) == 1
        assert "key_file" in capsys.readouterr().err
    assert main(["serve", "--listen", LOCAL, "--tls-cert", str(token)]) == 1
    assert main(["serve", "--listen", LOCAL, "--tls-client-ca", str(token)]) == 1
    assert main(["serve", "--listen", "0.0.0.0:0"]) == 1
    assert main(["stats", "--service", "192.0.2.1:1"]) == 1
    assert "never sent in plaintext" in capsys.readouterr().err
