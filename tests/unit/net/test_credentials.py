"""A client's credentials: what goes together, what is read, and a token file that is replaced while it is in use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from certificates import Authority

from radixkv.core.errors import InvalidArgumentError
from radixkv.net.channel import MAX_TOKEN_CHARACTERS, Credentials, _TokenFile, make_channel

HERE = "127.0.0.1:1"


def test_what_does_not_go_together_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(InvalidArgumentError, match="left out where a token is given") as refused:
        Credentials(token="a", token_file=path)
    assert refused.value.argument == "token_file"
    for given in ({"certificate_file": path}, {"key_file": path}):
        with pytest.raises(InvalidArgumentError, match="given along with key_file, or neither"):
            Credentials(**given)
    Credentials(certificate_file=path, key_file=path)


@pytest.mark.parametrize(
    ("names", "has_token", "is_secure"),
    [
        ((), False, False),
        (("token_file",), True, False),
        (("ca_file",), False, True),
        (("certificate_file", "key_file"), False, True),
        (("token_file", "ca_file"), True, True),
    ],
)
def test_credentials_say_what_they_hold(
    names: tuple[str, ...], has_token: bool, is_secure: bool, tmp_path: Path
) -> None:
    given = Credentials(**dict.fromkeys(names, tmp_path / "x"))
    assert (given.has_token, given.is_secure) == (has_token, is_secure)
    assert Credentials(token="t").has_token
    assert Credentials(token="t").read_token() == "t"
    assert Credentials().read_token() == ""


@pytest.mark.parametrize("content", ["t", "t\n", " t ", "x" * MAX_TOKEN_CHARACTERS])
def test_a_token_is_a_file_s_one_line(content: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    assert Credentials(token_file=path).read_token() == content.strip()


@pytest.mark.parametrize("content", ["", "\n", "one\ntwo", "caf\u00e9", "a\x07b", "x" * (MAX_TOKEN_CHARACTERS + 1)])
def test_another_file_is_none(content: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(InvalidArgumentError, match="one token of 1 to") as refused:
        make_channel(HERE, Credentials(token_file=path), [])
    assert (refused.value.argument, refused.value.value) == ("token_file", str(path))


def test_a_token_file_is_read_again_once_it_is_another_and_kept_while_it_is_missing(tmp_path: Path) -> None:
    path, next_one = tmp_path / "token", tmp_path / "next"
    path.write_text("first")
    token = _TokenFile(path)
    assert token.read() == "first"
    next_one.write_text("second")
    os.replace(next_one, path)
    assert token.read() == "second"
    path.unlink()
    assert token.read() == "second"
    path.write_text("")
    with pytest.raises(InvalidArgumentError):
        token.read()
    path.write_text("third")
    assert token.read() == "third"


@pytest.mark.parametrize("names", [("token_file",), ("ca_file",), ("certificate_file", "key_file")])
def test_a_file_that_cannot_be_read_is_named_at_once(names: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "missing"
    with pytest.raises(InvalidArgumentError, match="a file that can be read: No such file"):
        make_channel(HERE, Credentials(**dict.fromkeys(names, path)), [])


@pytest.mark.parametrize(
    ("address", "has_token", "is_secure", "is_taken"),
    [
        (HERE, True, False, True),
        ("unix:/x", True, False, True),
        ("192.0.2.1:1", False, False, True),
        ("192.0.2.1:1", False, True, True),
        ("192.0.2.1:1", True, True, True),
        ("192.0.2.1:1", True, False, False),
    ],
)
def test_a_token_goes_to_this_machine_or_by_tls(
    address: str, has_token: bool, is_secure: bool, is_taken: bool, tmp_path: Path
) -> None:
    authorities = Authority.make(tmp_path).own.certificate if is_secure else None
    credentials = Credentials(token="t" if has_token else None, ca_file=authorities)
    refused = pytest.raises(InvalidArgumentError, match="never sent in plaintext")
    with contextlib.nullcontext() if is_taken else refused:
        make_channel(address, credentials, []).close()
