"""The commands of `.ci/checks.toml` whose subject a change touches, one per line.

    touched.py TABLE          of `alone`, `together` or `workloads`
    touched.py TABLE --all    all of that table

Where the commit that `.ci/checked` names is not an ancestor of this one, everything counts as touched.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

FOLDER = Path(__file__).parent
PAGES = "radixkv/gateway/static/"
"""Scripts and styles, which Chromium tests by default: no command here runs them."""


def changed() -> list[str] | None:
    """The paths that differ from the checked commit, without documentation; None where that commit is unknown."""
    checked = (FOLDER / "checked").read_text(encoding="utf-8").strip()
    is_known = subprocess.run(["git", "merge-base", "--is-ancestor", checked, "HEAD"], capture_output=True, check=False)
    if is_known.returncode:
        return None
    listing = subprocess.run(
        ["git", "diff", "--name-only", "--no-renames", checked, "HEAD"], capture_output=True, text=True, check=True
    )
    return [path for path in listing.stdout.splitlines() if not path.startswith(PAGES) and not path.endswith(".md")]


def touched(table: str) -> list[str]:
    """The commands of a table that the change calls for."""
    checks = tomllib.loads((FOLDER / "checks.toml").read_text(encoding="utf-8"))
    groups: dict[str, list[str]] = checks["groups"]
    paths = None if "--all" in sys.argv else changed()
    if paths is None:
        return list(checks[table])

    def calls_for(subjects: list[str]) -> bool:
        prefixes = tuple(prefix for subject in subjects for prefix in groups.get(subject, [subject]))
        return any(path.startswith(prefixes) for path in paths)

    return [command for command, subjects in checks[table].items() if calls_for(subjects)]


if __name__ == "__main__":
    for command in touched(sys.argv[1]):
        print(command)
