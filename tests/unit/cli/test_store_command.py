"""`radixkv store` with a key file that is not there, and with an index that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from sealed_blocks import BlockMaker

from radixkv.cli.program import main


def test_erasing_with_a_key_file_that_is_not_there_is_refused_and_makes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maker = BlockMaker(tmp_path / "key")
    level = maker.level(tmp_path / "disk")
    level.write(maker.chain([1, 2, 3], "team"))
    level.close()
    folder, wrong = str(tmp_path / "disk"), str(tmp_path / "typo")
    for command in (
        ["erase", folder, "--namespace", "team"],
        ["erase", folder],
        ["check", folder, "--namespace", "team"],
    ):
        assert main(["store", *command, "--store-key", wrong]) == 1
        assert "--store-key" in capsys.readouterr().err
    assert main(["store", "check", folder, "--store-key", wrong]) == 0
    assert "3 blocks" in capsys.readouterr().out
    assert not Path(wrong).exists()
    assert main(["store", "erase", folder, "--namespace", "team", "--store-key", str(tmp_path / "key")]) == 0
    assert "3 blocks of team deleted" in capsys.readouterr().out


def test_an_index_that_cannot_be_read_is_named_and_fails_a_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maker, folder = BlockMaker(tmp_path / "key"), tmp_path / "disk"
    maker.level(folder).close()
    assert main(["store", "check", str(folder)]) == 0
    next(folder.glob("*/index")).write_bytes(b"no index" * 1000)
    capsys.readouterr()
    assert main(["store", "check", str(folder)]) == 1
    assert "index damaged" in capsys.readouterr().out
    assert main(["store", "list", str(folder)]) == 0
    assert "index unreadable" in capsys.readouterr().out
