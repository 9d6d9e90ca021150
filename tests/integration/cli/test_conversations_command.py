"""`radixkv conversations`: all that a gateway keeps goes into a file and comes back from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_stack import Stack, chat_stack, keys_file
from talk import Talk

from radixkv.cli.program import main
from radixkv.gateway.config import GatewayConfig


@pytest.fixture
def stack(default_model: str, tmp_path: Path) -> Iterator[Stack]:
    config = GatewayConfig(listen="127.0.0.1:0", keys_file=keys_file(tmp_path / "keys.toml"), drain_s=1.0)
    with chat_stack(default_model, config) as stack:
        yield stack


def test_what_is_exported_is_imported_again_with_its_marks(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = ["--gateway", stack.server.page_url, "--token-file", str(tmp_path / "key")]
    (tmp_path / "key").write_text("red")
    saved = tmp_path / "all.jsonl"
    with Talk(stack.server.url, "red") as talk, Talk(stack.server.url, "blue") as other:
        names = [f"Talk {number}" for number in range(3)]
        ids = [talk.begin(title=name, messages=[{"role": "user", "text": name}]) for name in names]
        talk.call("PATCH", f"/{ids[0]}", {"tags": ["work"], "archived": True, "settings": {"temperature": 0.5}})
        talk.call("PATCH", f"/{ids[1]}", {"tags": ["work"], "pinned": True})
        talk.call("POST", f"/{talk.begin(title='Thrown away')}/trash")
        assert main(["conversations", "export", str(saved), *gateway]) == 0
        assert "3 conversations" in capsys.readouterr().out
        assert sorted(json.loads(line)["title"] for line in saved.read_text().splitlines()) == names
        assert main(["conversations", "export", str(saved), *gateway]) == 1, "it would be overwritten"
        tagged = tmp_path / "work.jsonl"
        assert main(["conversations", "export", str(tagged), "--tag", "work", *gateway]) == 0
        assert len(tagged.read_text().splitlines()) == 2

        (tmp_path / "key").write_text("blue")
        capsys.readouterr()
        broken = tmp_path / "broken.json"
        broken.write_text('[{"mapping": {}}]')
        assert main(["conversations", "import", str(saved), str(broken), *gateway]) == 1
        told = capsys.readouterr().out
        assert "all.jsonl: 3 imported" in told
        assert "1 skipped: it holds no text of anybody's" in told
        found = {each["title"]: each for each in other.call("GET", search="Talk")["conversations"]}
        assert (found["Talk 0"]["archived"], found["Talk 0"]["settings"]) == (True, {"temperature": 0.5})
        assert (found["Talk 1"]["pinned"], found["Talk 1"]["tags"]) == (True, ["work"])
        assert main(["conversations", "import", str(saved), *gateway]) == 0
        assert "0 imported, 3 known already" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "a.jsonl", "b.jsonl"],
        ["import", "none.json"],
        ["import", "none.json", "--tag", "work"],
        ["export", "a.jsonl", "--gateway", "nowhere"],
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["conversations", *arguments]) == 1
    assert capsys.readouterr().err.startswith("radixkv: ")
    assert list(tmp_path.iterdir()) == []
