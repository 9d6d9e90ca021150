"""The commands of `.ci/checks.toml` whose subject a change touches, one per line.

    touched.py TABLE          of `thorough`, `alone`, `attacks`, `together` or `workloads`
    touched.py TABLE --all    all of that table

Where the commit that `.ci/checked` names is not an ancestor of this one, everything counts as touched.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

FOLDER = Path(__file__).parent


def changed() -> list[str] | None:
    """The paths whose content differs from the checked commit; None where that commit is unknown.

    A module that only moved, or of which only imports and docstrings differ, is none of them.
    """
    checked = (FOLDER / "checked").read_text(encoding="utf-8").strip()
    is_known = subprocess.run(["git", "merge-base", "--is-ancestor", checked, "HEAD"], capture_output=True, check=False)
    if is_known.returncode:
        return None
    found = []
    for line in _git("diff", "--name-status", "--find-renames=40%", "-l0", checked, "HEAD").splitlines():
        status, *paths = line.split("\t")
        path = paths[-1]
        if path.endswith(".py") and status[0] in "AMR" and _is_same(status, paths, checked):
            continue
        found.append(path)
    return found


def _is_same(status: str, paths: list[str], checked: str) -> bool:
    before = "" if status == "A" else _git("show", f"{checked}:{paths[0]}")
    return _code(before) == _code(_git("show", f"HEAD:{paths[-1]}"))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def _code(source: str) -> str:
    """A module without its imports and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.If)):
            node.body = [one for one in node.body if not _is_no_code(one)]
    return ast.dump(tree)


def _is_no_code(node: ast.stmt) -> bool:
    """An import, or a text that stands for itself."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, (ast.Import, ast.ImportFrom))


def _is_among(path: str, subjects: tuple[str, ...]) -> bool:
    """Whether a path begins with one of the subjects. Documentation counts by its file's name alone."""
    return Path(path).name in subjects if path.endswith(".md") else path.startswith(subjects)


def main() -> None:
    """Print the commands of a table that the change calls for."""
    checks = tomllib.loads((FOLDER / "checks.toml").read_text(encoding="utf-8"))
    paths = None if "--all" in sys.argv else changed()
    for command, subjects in checks[sys.argv[1]].items():
        if paths is None or any(_is_among(path, (command, *subjects)) for path in paths):
            print(command)


if __name__ == "__main__":
    main()
