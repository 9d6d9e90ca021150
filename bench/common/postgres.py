"""Where this machine has PostgreSQL, and how its programs are run: under a user that is not root."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["SUPERUSER", "has_postgres", "make_cluster", "postgres_command"]

SUPERUSER = "radixkv"
_USER = "postgres"
_FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
_INITDB = shutil.which("initdb", path=os.pathsep.join(map(str, _FOLDERS))) or shutil.which("initdb")
has_postgres = _INITDB is not None


def make_cluster(folder: Path) -> None:
    """Make `folder`, with the files of a server that trusts this machine's users."""
    folder.mkdir()
    if os.geteuid() == 0:
        shutil.chown(folder, _USER)
        folder.parent.chmod(0o711)  # so that the user reaches its own folder
    made = ["-D", str(folder / "data"), "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--no-sync"]
    subprocess.run([*_program("initdb"), *made], check=True, stdout=subprocess.DEVNULL, timeout=120)
    with (folder / "data" / "pg_hba.conf").open("a", encoding="ascii") as rules:
        rules.write("host all all samenet trust\n")


def postgres_command(folder: Path, port: int, host: str = "127.0.0.1") -> list[str]:
    """The command line of a server with the files of `make_cluster`."""
    place = ["-D", str(folder / "data"), "-k", str(folder), "-h", host, "-p", str(port)]
    return [*_program("postgres"), *place, "-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "max_connections=50"]


def _program(name: str) -> list[str]:
    assert _INITDB is not None
    program = [str(Path(_INITDB).parent / name)]
    is_root = os.geteuid() == 0
    return ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups", *program] if is_root else program
