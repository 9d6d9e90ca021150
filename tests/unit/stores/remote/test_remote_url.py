"""A URL of the remote level is checked where it enters, and its secrets are shown nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixkv.core.errors import InvalidArgumentError
from radixkv.stores.remote.url import RemoteUrl

SECRET = "s3cr3t-w0rd"


@pytest.mark.parametrize(
    ("url", "place", "db", "username"),
    [
        ("redis://localhost", "redis://localhost:6379", 0, None),
        (f"redis://:{SECRET}@cache.example:7000/2", "redis://cache.example:7000?db=2", 2, None),
        (f"redis://me:{SECRET}@[::1]:7000", "redis://[::1]:7000", 0, "me"),
        (f"redis://10.0.0.1/?db=4&password={SECRET}", "redis://10.0.0.1:6379?db=4", 4, None),
        ("redis://10.0.0.1/99999", "redis://10.0.0.1:6379?db=99999", 99999, None),
        (f"rediss://me:{SECRET}@cache.example", "rediss://cache.example:6379", 0, "me"),
        (f"unix:///run/valkey.sock?db=1&username=me&password={SECRET}", "unix:///run/valkey.sock?db=1", 1, "me"),
    ],
)
def test_a_url_gives_a_place_without_secrets(url: str, place: str, db: int, username: str | None) -> None:
    parsed = RemoteUrl.parse(url)
    assert (parsed.place, parsed.db, parsed.username) == (place, db, username)
    assert parsed.password == (SECRET if SECRET in url else None)
    assert SECRET not in repr(parsed) + str(parsed)
    assert not parsed.is_cluster


def test_other_servers_of_a_cluster_get_the_same_login() -> None:
    parsed = RemoteUrl.parse(f"rediss://me:{SECRET}@a.example:7000?cluster=1&ssl_cert_reqs=none")
    other = parsed.at("b.example", 7001)
    assert (other.place, other.host, other.password) == ("rediss://b.example:7001", "b.example", SECRET)
    assert parsed.is_cluster
    assert parsed.host == "a.example"
    assert parsed.at("::1", 7).place == "rediss://[::1]:7"


@pytest.mark.parametrize(
    ("url", "bound"),
    [
        ("", "begins with redis://"),
        ("localhost:6379", "begins with redis://"),
        (f"http://:{SECRET}@localhost", "begins with redis://"),
        (f"{SECRET}://localhost", "begins with redis://"),
        ("redis://", "with a host"),
        (f"redis://:{SECRET}@", "with a host"),
        (f"redis://:{SECRET}", "port from 1 to 65535"),
        (f"redis://user:{SECRET}", "port from 1 to 65535"),
        (f"redis://:{SECRET}@host:70000", "port from 1 to 65535"),
        (f"redis://:{SECRET}@host:0", "port from 1 to 65535"),
        (f"redis://:{SECRET}@[::1", "port from 1 to 65535"),
        (f"redis://:{SECRET}@host/{SECRET}", "number of a database"),
        (f"redis://:{SECRET}@host/-1", "number of a database"),
        (f"redis://:{SECRET}@host?db=1e3", "number of a database"),
        (f"redis://:{SECRET}#@host", "port from 1 to 65535"),
        ("redis://host/100000", "number of a database"),
        ("redis://host/\u0663", "number of a database"),
        (f"redis://host/#{SECRET}", "without a #"),
        (f"redis://host?password={SECRET}&cluster=yes", "cluster=0 or cluster=1"),
        ("redis://host/1?cluster=1", "where cluster=1"),
        ("unix:///a.sock?cluster=1", "where cluster=1"),
        ("redis://host?max_connections=5", "(found: max_connections)"),
        ("redis://host?ssl_ca_certs=/etc/hosts", "(found: ssl_ca_certs)"),
        (f"redis://host?{SECRET}=1", "(found: unreadable names)"),
        (f"redis://host?{SECRET}", "of the form name=value"),
        ("unix://", "path of a socket"),
        ("rediss://host?ssl_ca_certs=/no/such/file", "readable file as ssl_ca_certs"),
        ("rediss://host?ssl_cert_reqs=maybe", "ssl_cert_reqs=required or none"),
        ("rediss://host?ssl_check_hostname=perhaps", "ssl_check_hostname=true or false"),
    ],
)
def test_a_wrong_url_is_refused_by_the_name_of_its_flag(url: str, bound: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        RemoteUrl.parse(url)
    error = caught.value
    assert error.argument == "--remote"
    assert bound in str(error)
    assert SECRET not in str(error) + repr(error) + str(error.value)
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None


def test_a_folder_is_no_certificate(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="readable file as ssl_certfile"):
        RemoteUrl.parse(f"rediss://host?ssl_certfile={tmp_path}")
