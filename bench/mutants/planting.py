"""Runs tests on a bug: with one module's text changed, in a separate process, without touching a file.

A process per bug is cheap: it is forked from one that has imported the packages that all tests need, but nothing of radixkv.
Programs started by a test run the files on disk.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import CodeType

__all__ = ["ROOT", "module_name", "prepare", "run_planted"]

ROOT = Path(__file__).resolve().parents[2]
_SHARED = (
    "pytest",
    "torch",
    "transformers",
    "hypothesis",
    "grpc",
    "fastapi",
    "httpx",
    "uvicorn",
    "openai",
    "anthropic",
)

_OPTIONS = ("-qx", "-m", "", "-n", "0", "-p", "no:cacheprovider", "--timeout", "60")
_OPTIONS = (*_OPTIONS, "-W", "ignore::pytest.PytestAssertRewriteWarning")  # a plugin of pytest's is imported before
_USAGE_ERROR = 4  # of pytest's exit statuses: a wrong name, and a conftest that cannot be imported
_NOT_FOUND = re.compile(r"^ERROR: (file or directory )?not found: ", re.MULTILINE)


def prepare() -> None:
    """Import slow packages once."""
    for name in _SHARED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def module_name(path: str) -> str:
    """Import name of `radixkv/core/nodes/node.py`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def run_planted(path: str, source: bytes, tests: Sequence[str], log: Path, timeout_s: float) -> str:
    """Verdict of the tests if `source` is the module at `path` (of the repository): `found`, `hangs`, `survives` or `not run`.

    They stop at the first failure; their output is in `log`. If one is missing, none is run. Nothing of radixkv may be imported
    here.
    """
    child = os.fork()
    if not child:
        _run(path, source, tests, log)
    due_s = time.monotonic() + timeout_s
    while time.monotonic() < due_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            if os.waitstatus_to_exitcode(status) == _USAGE_ERROR and _NOT_FOUND.search(log.read_text(errors="replace")):
                return "not run"
            return "survives" if status == 0 else "found"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


def _run(path: str, source: bytes, tests: Sequence[str], log: Path) -> None:
    """In the child: run the tests and exit, with 0 if none fails."""
    code = 1
    try:
        os.setsid()
        os.chdir(ROOT)
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.meta_path.insert(0, _Planted(path, source))
        pytest = importlib.import_module("pytest")
        code = pytest.main([*_OPTIONS, *tests])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(int(code))


class _Planted(importlib.abc.MetaPathFinder):
    """Finds the one module, with the changed text."""

    def __init__(self, path: str, source: bytes) -> None:
        self._name, self._path, self._source = module_name(path), str(ROOT / path), source

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=_Loader(self._path, self._source))


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, path: str, source: bytes) -> None:
        super().__init__(module_name(os.path.relpath(path, ROOT)), path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        return compile(self._source, self.path, "exec", dont_inherit=True)
