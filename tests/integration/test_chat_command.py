"""`radixkv chat` as a person uses it over days: kept, taken up again, forked inside a reply."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def chat(state: Path, model: str, *lines: str) -> str:
    """What a chat prints that is typed these lines."""
    command = [sys.executable, "-m", "radixkv.cli", "chat", "--model", model, "--num-blocks", "64"]
    finished = subprocess.run(
        [*command, "--temperature", "0", "--max-tokens", "12"],
        input="".join(f"{line}\n" for line in lines),
        env={**os.environ, "RADIXKV_STATE": str(state), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_a_chat_is_kept_taken_up_and_forked_inside_a_reply(default_model: str, tmp_path: Path) -> None:
    first = chat(tmp_path, default_model, "Name three colours.", "/save my colours", "And three animals.")
    assert "Kept as 'my colours'" in first
    replies = re.findall(r"bot> (.*)", first)
    assert len(replies) == 2
    word = replies[0].split()[2]
    second = chat(
        tmp_path,
        default_model,
        "/resume",
        "/resume my colours",
        f"/fork 1 {word}",
        "/branches",
        "/fork 1 there is no such text",
        "/resume nothing",
    )
    listed, _, rest = second.partition("you> Name three colours.")
    assert "my colours" in listed
    assert replies[0] in rest
    assert replies[1] in rest, "what came after the chat was kept is kept as well"
    (reused,) = re.findall(r"prompt (\d+) tokens", rest)
    forked = re.findall(r"bot> (.*)", rest)[2]
    assert forked.startswith(replies[0][: replies[0].index(word) + len(word)])
    assert int(reused) > 10
    assert re.search(r"^  +1  2 turns", rest, re.MULTILINE), "the branch kept its number"
    assert re.search(r"^\* +2  1 turns", rest, re.MULTILINE)
    assert "! that reply does not say" in rest
    assert "! no chat is saved as 'nothing'; saved: my colours" in rest
