"""A keys file that is being written, was cut off or emptied takes nothing from anybody and gives nobody more."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from radixkv.core.errors import InvalidArgumentError
from radixkv.net.keys_file import SETTLED_S, KeysFile
from radixkv.net.tenants import KeyRing, Tenant

KEYS = ("one", "two", "board")


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def table(name: str, *lines: str) -> str:
    return "\n".join(["[[tenant]]", f'name = "{name}"', f'keys = ["{digest(name)}"]', *lines, "", ""])


TEXT = (
    "# who may call\n"
    + table("one", 'namespace = "team"', "max_concurrent = 1")
    + table("two", "requests_per_minute = 16")
    + table("board", 'roles = ["reader"]', 'namespaces = ["team"]')
)


def settle(path: Path) -> None:
    """The file was last changed a while ago."""
    then_s = time.time() - 10 * SETTLED_S
    os.utime(path, (then_s, then_s))


def write_just_now(path: Path, text: str) -> None:
    """In place, and it was changed a moment ago for as long as the test takes."""
    path.write_text(text)
    soon_s = time.time() + 3600
    os.utime(path, (soon_s, soon_s))


def put(path: Path, text: str) -> None:
    """Another file in the place of this one, at once."""
    new = path.with_suffix(".new")
    new.write_text(text)
    settle(new)
    new.rename(path)


def known(ring: KeyRing, clock: Clock) -> dict[str, Tenant | None]:
    clock.now_s += 1.0
    return {key: ring.find(key) for key in KEYS}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(TEXT)
    return path


def test_a_file_that_is_cut_off_anywhere_within_a_table_changes_nothing(path: Path, clock: Clock) -> None:
    ring = KeyRing(path, clock=clock)
    before = known(ring, clock)
    assert None not in before.values()
    ends = [at for at in range(len(TEXT)) if TEXT[at:].lstrip().startswith("[[tenant]]")]
    for length in range(len(TEXT)):
        path.write_text(TEXT[:length])
        settle(path)
        now = known(ring, clock)
        if length in ends and length > TEXT.index("[["):  # as one from which the last tenants were taken out
            assert all(now[key] in (before[key], None) for key in KEYS)
            path.write_text(TEXT)
            settle(path)
            now = known(ring, clock)
        assert now == before, TEXT[:length][-40:]


def test_an_empty_file_in_the_place_of_a_full_one_changes_nothing(path: Path, clock: Clock) -> None:
    ring = KeyRing(path, clock=clock)
    before = known(ring, clock)
    for text in ("", "\n", "# nobody\n"):
        put(path, text)
        assert known(ring, clock) == before
        path.write_text(text)
        settle(path)
        assert known(ring, clock) == before
    path.unlink()
    assert known(ring, clock) == before


def test_a_file_that_is_being_written_is_not_read_until_it_rests(path: Path, clock: Clock) -> None:
    ring = KeyRing(path, clock=clock)
    before = known(ring, clock)
    for length in (200, 300, 400):
        write_just_now(path, ("# other\n" + TEXT.replace('roles = ["reader"]', 'roles = ["holder"]'))[:length])
        assert known(ring, clock) == before
    write_just_now(path, TEXT.replace('roles = ["reader"]', 'roles = ["holder"]'))
    assert known(ring, clock) == before
    now = known(ring, clock)  # it has not changed between two looks
    assert now["board"] is not None
    assert now["board"].roles == {"holder"}


def test_a_file_renamed_over_the_other_is_believed_whatever_it_leaves_out(path: Path, clock: Clock) -> None:
    ring = KeyRing(path, clock=clock)
    before = known(ring, clock)
    put(path, TEXT[: TEXT.index("namespaces")].rstrip("\n"))
    now = known(ring, clock)
    assert now["board"] is not None
    assert now["board"].namespaces is None
    put(path, table("two"))
    assert known(ring, clock) == {"one": None, "two": Tenant("two", "two"), "board": None} != before


def test_a_fault_is_told_once_and_the_next_whole_file_is_read(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    ring = KeyRing(path, clock=clock)
    path.write_text(TEXT[:-8])
    settle(path)
    for _ in range(3):
        known(ring, clock)
    [fault] = [record.message for record in caplog.records if "stay in use" in record.message]
    assert "rename" in fault
    put(path, TEXT + table("new"))
    clock.now_s += 1.0
    assert ring.find("new") == Tenant("new", "new")


def test_a_file_that_changes_under_every_reading_is_refused(path: Path) -> None:
    class Restless(type(path)):  # type: ignore[misc]  # the class of paths of this platform
        def read_text(self, **_how: object) -> str:
            text = path.read_text()
            path.write_text(text + "#\n")
            return text

    with pytest.raises(InvalidArgumentError, match="nobody is writing"):
        KeysFile(Restless(path)).load(str)
