"""The native CPU kernels, compiled from `native/` at first use and cached.

    native/*.cpp  ->  c++ -O3, for this machine's vector extensions  ->  CACHE/kernels/LEVEL-HASH-CONTENT.so  ->  loaded

The hash is of the sources, the flags and the compiler, so any change builds again and never loads an older library. Two
processes that start together build once. A library appears in the cache complete or not at all. A library whose content does
not match the digest in its name, or that another user owns or may write, is never loaded: it is built again. If there is no
compiler, or it fails, a warning has the reason and callers take the torch path.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from radixkv.util.folders import cache_folder

__all__ = ["CHOICE_VARIABLE", "LEVELS", "NativeBuildError", "build_native", "choose_level", "native_library"]

_logger = logging.getLogger(__name__)

CHOICE_VARIABLE = "RADIXKV_CPU_KERNELS"
"""Environment variable: a level of `LEVELS`, or ``torch`` for none of them. Unset: the best that the machine can run."""

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
LEVELS: dict[str, tuple[str, ...]] = {
    "avx512_bf16": (*_AVX512, "avx512bf16", "avx512vnni", "fma"),
    "avx512_vnni": (*_AVX512, "avx512vnni", "fma"),
    "avx512": (*_AVX512, "fma"),
    "avx2": ("avx2", "fma"),
    "portable": (),
}
"""Processor extensions of each level, as the compiler names them; best first."""

_SOURCES = Path(__file__).parents[1] / "native"
_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fopenmp", "-fPIC", "-shared", "-w")
_COMPILERS = ("c++", "g++", "clang++")
_TIMEOUT_S = 600.0


class NativeBuildError(Exception):
    """The native kernels are not available here; the message has the reason."""


@cache
def native_library() -> ctypes.CDLL | None:
    """The library for this machine, built if needed; None after a logged warning with the reason.

    Built and loaded once per process; a first build takes seconds.
    """
    choice = os.environ.get(CHOICE_VARIABLE, "").strip().lower()
    if choice == "torch":
        return None
    try:
        if choice and choice not in usable_levels():
            raise NativeBuildError(f"{CHOICE_VARIABLE}={choice} is none of torch, {', '.join(usable_levels())}")
        return ctypes.CDLL(str(build_native(choice or choose_level())))
    except (NativeBuildError, OSError) as error:
        _logger.warning("without compiled CPU kernels attention runs on torch operators, more slowly: %s", error)
        return None


def usable_levels(cpu_info: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """The levels that this machine can run, best first, by `cpu_info`, the kernel's file."""
    try:
        told = re.search(r"^flags\s*:(.*)$", cpu_info.read_text(), re.MULTILINE)
    except OSError:
        told = None
    extensions = {name.replace("_", "") for name in told[1].split()} if told else set()
    return tuple(level for level, needed in LEVELS.items() if extensions.issuperset(needed))


def choose_level() -> str:
    """The best level for this machine."""
    return usable_levels()[0]


def build_native(level: str, folder: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The library for `level`, compiled unless `folder` (the user's cache if None) has it. `CXX` names another compiler.

    Raises:
        NativeBuildError: there is no compiler, it failed, or the folder cannot be written.
    """
    from filelock import FileLock

    compiler = _find_compiler(environ)
    flags = (*_FLAGS, *(f"-m{extension}" for extension in LEVELS[level]))
    runtime = _openmp_runtime()
    sources = sorted(_SOURCES.glob("*.cpp"))
    digest = hashlib.sha256(repr((flags, runtime, _version_of(compiler), platform.machine())).encode())
    for path in sorted(_SOURCES.iterdir()):
        digest.update(path.read_bytes())
    folder = folder or cache_folder() / "kernels"
    name = f"{level}-{digest.hexdigest()[:16]}"
    if library := _find_whole(folder, name):
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            FileLock(folder / f".{level}.lock"),
            tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as partial,
        ):
            library = _find_whole(folder, name)
            if library is None:
                _logger.info("compiling the CPU kernels for %s, once", level)
                started_s = time.monotonic()
                made = Path(partial) / f"{name}.so"
                _compile([compiler, *flags, *map(str, sources), *runtime, "-o", str(made)])
                made.chmod(0o700)
                for spoilt in folder.glob(f"{name}-*.so"):
                    spoilt.unlink()
                library = made.replace(folder / f"{name}-{_content_digest(made)}.so")
                _logger.info("compiled the CPU kernels in %.1f s: %s", time.monotonic() - started_s, library)
    except OSError as error:
        raise NativeBuildError(f"the CPU kernels cannot be kept in {folder}: {error}; set RADIXKV_CACHE") from error
    return library


def _find_whole(folder: Path, name: str) -> Path | None:
    """The library of that name, if its content is unchanged, and no other user except root could have changed it."""
    return next((path for path in folder.glob(f"{name}-*.so") if _is_ours(path) and _is_whole(path, name)), None)


def _is_ours(path: Path) -> bool:
    status = path.stat()
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_whole(path: Path, name: str) -> bool:
    return path.stem == f"{name}-{_content_digest(path)}"


def _content_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _compile(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NativeBuildError(f"{command[0]} did not compile the CPU kernels in {_TIMEOUT_S:g} s") from None
    if done.returncode < 0:
        ended = signal.strsignal(-done.returncode) or f"signal {-done.returncode}"
        raise NativeBuildError(f"{command[0]} was interrupted while it compiled the CPU kernels: {ended}")
    if done.returncode:
        lines = (
            [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["no message"]
        )
        raise NativeBuildError(f"{command[0]} cannot compile the CPU kernels: {lines[0].strip()}")


def _find_compiler(environ: Mapping[str, str]) -> str:
    wanted = environ.get("CXX")
    for name in (wanted,) if wanted else _COMPILERS:
        if found := shutil.which(name, path=environ.get("PATH")):
            return found
    raise NativeBuildError(
        f"CXX={wanted} is no command" if wanted else "there is no C++ compiler: install g++ (or clang++), or set CXX"
    )


def _version_of(compiler: str) -> str:
    try:
        return subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NativeBuildError(f"{compiler} cannot be run: {error}") from None


def _openmp_runtime() -> tuple[str, ...]:
    """The OpenMP library that torch has loaded, to link by its path: a second library would have threads of its own, and the
    two would compete for the cores.
    """
    try:
        mapped = Path("/proc/self/maps").read_text()
    except OSError:
        return ("-fopenmp",)
    found = re.search(r"/.*/lib(?:gomp|iomp5|omp)[-.].*", mapped)
    return (found[0],) if found else ("-fopenmp",)
