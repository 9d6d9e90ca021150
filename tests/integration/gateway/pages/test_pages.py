"""The files that browsers load: served from the package, under a policy that lets nothing else in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import httpx
import pytest
from chat_stack import chat_stack, keys_file

import radixkv.gateway
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.pages.pages import PAGES

STATIC = Path(radixkv.gateway.__file__).parent / "static"
OWN = [path for path in STATIC.rglob("*") if path.suffix in {".html", ".css", ".js"} and "vendor" not in path.parts]


@pytest.fixture(scope="module")
def client(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    keys = keys_file(tmp_path_factory.mktemp("keys") / "keys.toml")
    with (
        chat_stack(default_model, GatewayConfig(listen="127.0.0.1:0", keys_file=keys)) as stack,
        httpx.Client(base_url=f"http://{stack.server.address}", timeout=300) as client,
    ):
        yield client


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_served_without_a_key_and_lets_nothing_in_from_elsewhere(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    for loaded in re.findall(r'(?:src|href)="([^"]+)"', answer.text):
        assert client.get(loaded).status_code == 200


def test_what_a_browser_has_already_is_not_sent_again(client: httpx.Client) -> None:
    first = client.get("/static/base.css")
    again = client.get("/static/base.css", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    plain = client.get("/static/base.css", headers={"Accept-Encoding": "identity"})
    assert first.headers["content-encoding"] == "gzip"
    assert plain.content == first.content == (STATIC / "base.css").read_bytes()


@pytest.mark.parametrize("path", ["", "none.js", "../pages.py", "%2e%2e/pages.py", "vendor"])
def test_nothing_else_is_served(client: httpx.Client, path: str) -> None:
    assert client.get(f"/static/{path}").status_code == 404


def test_the_scripts_folders_import_each_other_in_one_direction() -> None:
    below: dict[Path, set[Path]] = {}
    for path in OWN:
        for target in re.findall(r"""\b(?:from|import)[\s(]*["'](\.[^"']+)["']""", path.read_text()):
            folder = (path.parent / target).resolve().parent
            below.setdefault(path.parent, set()).update({folder} - {path.parent})
    assert len(below) > 10
    TopologicalSorter(below).prepare()  # which fails on a circle


def test_our_files_name_no_other_host_but_to_link_to_it() -> None:
    assert len(OWN) > 5
    for path in OWN:
        hosts = re.findall(r'(?<!<a href=")https?://[\w.-]+', path.read_text())
        assert set(hosts) <= {"http://www.w3.org"}, path


def test_libraries_are_those_that_the_table_names() -> None:
    table = (STATIC / "vendor" / "README.md").read_text()
    named = dict(re.findall(r"^\| (\S+\.(?:js|css)) .* ([0-9a-f]{64}) \|$", table, re.MULTILINE))
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (STATIC / "vendor").glob("*.*s")}
    assert named == found
