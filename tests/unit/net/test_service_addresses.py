"""Addresses are read, and found free, before anything listens."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from free_ports import free_port

from radixkv.core.errors import InvalidArgumentError, UnavailableError
from radixkv.net.addresses import parse_address


@pytest.mark.parametrize(
    "text", ["127.0.0.1:50051", "localhost:0", "[::1]:8080", "unix:/run/radixkv.sock", "unix:here"]
)
def test_an_address_is_read_and_written_alike(text: str) -> None:
    assert str(parse_address(text)) == text


def test_a_unix_url_is_its_path() -> None:
    assert parse_address("unix:///run/radixkv.sock").path == "/run/radixkv.sock"


@pytest.mark.parametrize(
    "text", ["", "localhost", ":80", "host:", "host:x", "host:65536", "host:-1", "unix:", "unix:" + "x" * 200]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="address"):
        parse_address(text)


def test_looking_whether_an_address_is_free_takes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    port = free_port()
    parse_address(f"127.0.0.1:{port}").require_free()
    parse_address(f"unix:{tmp_path}/s").require_free()
    assert list(tmp_path.iterdir()) == []
    with socket.socket() as taker:
        taker.bind(("127.0.0.1", port))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_free_port_takes_the_place_of_port_0(host: str) -> None:
    address = parse_address(f"{host}:0").with_port()
    assert address.port > 0
    address.require_free()
    assert address.with_port() == address


@pytest.mark.parametrize("shares_port", [False, True])
def test_a_port_in_use_is_refused_by_name_even_if_its_owner_shares_it(shares_port: bool) -> None:
    with socket.socket() as owner:
        owner.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shares_port))
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        address = f"127.0.0.1:{owner.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=address):
            parse_address(address).require_free()


def test_a_unix_socket_in_use_is_refused_and_a_stale_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as owner:
        owner.bind(str(path))
        owner.listen()
        with pytest.raises(UnavailableError, match=str(path)):
            parse_address(f"unix:{path}").require_free()
    assert path.exists(), "a closed socket leaves its file"
    parse_address(f"unix:{path}").require_free()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(UnavailableError, match="notes"):
        parse_address(f"unix:{path}").require_free()
    assert path.read_text() == "mine"


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="folder"):
        parse_address(f"unix:{tmp_path}/no/s").require_free()


def test_a_host_of_another_machine_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"192\.0\.2\.1"):
        parse_address("192.0.2.1:0").require_free()


def test_a_host_that_is_none_of_this_machine_and_a_path_that_cannot_be_made_are_refused_by_name(tmp_path: Path) -> None:
    for host in ("host.invalid", "192.0.2.1"):
        with pytest.raises(InvalidArgumentError, match="a host of this machine"):
            parse_address(f"{host}:0").require_free()
    with pytest.raises(InvalidArgumentError, match="in a folder that exists"):
        parse_address(f"unix:{tmp_path}/nowhere/s").require_free()
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="a file that is no socket is in the way"):
        parse_address(f"unix:{tmp_path}/file").require_free()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(f"{tmp_path}/datagrams")
        with pytest.raises(UnavailableError, match=r"cannot listen on unix:.*wrong type"):
            parse_address(f"unix:{tmp_path}/datagrams").require_free()


@pytest.mark.parametrize(
    ("address", "is_own"),
    [
        ("unix:/x", True),
        ("localhost:1", True),
        ("LocalHost:1", True),
        ("127.0.0.9:1", True),
        ("[::1]:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("example.org:1", False),
    ],
)
def test_an_address_is_own_where_no_other_machine_reaches_it(address: str, is_own: bool) -> None:
    assert parse_address(address).is_own is is_own
