"""The native kernels are built once, appear whole or not at all, and where they cannot be had the log says why."""

from __future__ import annotations

import logging
import multiprocessing
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from own_threads import own_records
from paged_cases import Shape, assert_agrees, make_case, spec_of

from radixkv.kernels.runtime.native_build import (
    CHOICE_VARIABLE,
    NativeBuildError,
    build_native,
    choose_level,
    native_library,
    usable_levels,
)


@pytest.fixture(autouse=True)
def nothing_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RADIXKV_CACHE", str(tmp_path / "cache"))
    native_library.cache_clear()
    yield
    native_library.cache_clear()


QUICK_COMPILER = """#!/bin/sh
log="$(dirname "$0")/log"
[ "$1" = --version ] && echo asked >> "$log" && exec echo 1
until [ "$(grep -c asked "$log")" -ge "${NUM_BUILDERS:-1}" ]; do sleep 0.1; done
while [ "$1" != -o ]; do shift; done
echo compiled >> "$log"
c++ -shared -fPIC -x c++ /dev/null -o "$2"
"""


@pytest.fixture
def compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of a compiler that builds an empty library, the same each time. The kernels' own tests compile the sources."""
    compiler = tmp_path / "bin" / "quick-c++"
    compiler.parent.mkdir()
    compiler.write_text(QUICK_COMPILER)
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    return compiler.with_name("log")


def libraries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.so"))


def test_the_best_level_that_the_machine_can_run_is_chosen() -> None:
    assert choose_level() == usable_levels()[0]
    assert usable_levels()[-1] == "portable"
    assert ("avx512_bf16" in usable_levels()) == torch.cpu._is_avx512_bf16_supported()


@pytest.mark.parametrize(
    ("flags", "levels"),
    [
        (
            "fma avx2 avx512f avx512bw avx512dq avx512vl avx512_bf16 avx512_vnni",
            "avx512_bf16 avx512_vnni avx512 avx2 portable",
        ),
        ("fma avx2 avx512f avx512bw avx512dq avx512vl avx512_bf16", "avx512 avx2 portable"),
        ("fma avx2", "avx2 portable"),
        ("avx2", "portable"),
        (None, "portable"),
    ],
)
def test_a_level_is_usable_with_all_the_extensions_it_needs(flags: str | None, levels: str, tmp_path: Path) -> None:
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {flags} ht\nbugs\t\t: avx2 fma\n")
    assert usable_levels(tmp_path / "cpuinfo") == tuple(levels.split())


def test_a_second_build_finds_the_first(tmp_path: Path, compilations: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        built = build_native("portable", tmp_path)
        assert "compiling the CPU kernels for portable, once" in caplog.text
        caplog.clear()
        assert build_native("portable", tmp_path) == built
    assert not own_records(caplog)
    assert libraries(tmp_path) == [built]
    assert compilations.read_text().count("compiled") == 1


@pytest.mark.usefixtures("compilations")
def test_a_library_that_was_cut_short_is_built_again(tmp_path: Path) -> None:
    built = build_native("portable", tmp_path)
    whole = built.read_bytes()
    built.write_bytes(whole[:1000])  # to load this would end the process with a bus error
    assert build_native("portable", tmp_path) == built
    assert built.read_bytes() == whole
    assert libraries(tmp_path) == [built]


@pytest.mark.usefixtures("compilations")
@pytest.mark.parametrize("harm", ["changed", "writable", "given away"])
def test_a_library_that_another_user_may_have_changed_is_built_again(harm: str, tmp_path: Path) -> None:
    if harm == "given away" and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    built = build_native("portable", tmp_path)
    whole = built.read_bytes()
    if harm == "changed":
        built.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif harm == "writable":
        built.chmod(0o722)
    else:
        os.chown(built, 65534, 65534)
    assert build_native("portable", tmp_path) == built
    status = built.stat()
    assert built.read_bytes() == whole
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o700, os.geteuid())
    assert libraries(tmp_path) == [built]


def test_processes_that_start_together_build_once(
    tmp_path: Path, compilations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUM_BUILDERS", "2")  # the first compiles when the second is about to
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        built = pool.starmap(build_native, [("portable", tmp_path)] * 2)
    assert libraries(tmp_path) == [built[0]]
    assert len(set(built)) == 1
    assert compilations.read_text().count("compiled") == 1


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        (None, "there is no C\\+\\+ compiler: install g\\+\\+"),
        ("nowhere", "CXX=nowhere is no command"),
        ("exit 1", "cannot be run"),
        (
            "echo 1.0; case $* in *portable*) echo 'x.cpp: error: no such thing' >&2; exit 1;; esac",
            "error: no such thing",
        ),
        ("echo 1.0; kill -9 $$", "cannot be run"),
        ("echo 1.0; case $* in *portable*) kill -15 $$;; esac", "interrupted while it compiled .*: Terminated"),
    ],
)
def test_a_compiler_that_is_missing_or_fails_is_an_error_that_says_so(
    compiler: str | None, reason: str, tmp_path: Path
) -> None:
    environ = {"PATH": str(tmp_path / "bin")}
    if compiler is not None:
        environ["CXX"] = compiler if compiler == "nowhere" else str(tmp_path / "cxx")
        (tmp_path / "cxx").write_text(f"#!/bin/sh\n{compiler}\n")
        (tmp_path / "cxx").chmod(0o755)
    with pytest.raises(NativeBuildError, match=reason):
        build_native("portable", tmp_path / "made", environ)
    assert libraries(tmp_path) == []


def test_a_folder_that_cannot_be_made_says_which_variable_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NativeBuildError, match="set RADIXKV_CACHE"):
        build_native("portable", tmp_path / "file" / "kernels")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("CXX", "nowhere", "CXX=nowhere is no command"),
        (CHOICE_VARIABLE, "mmx", "RADIXKV_CPU_KERNELS=mmx is none of torch, "),
    ],
)
def test_without_a_library_attention_takes_the_torch_path_and_the_log_says_why(
    name: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, value)
    case = make_case([(1, 33), (5, 40)], Shape())
    assert_agrees(case.on_cpu(), case.expected(spec_of(Shape())))
    assert native_library() is None
    assert len(own_records(caplog)) == 1  # once per process, not per call
    assert reason in caplog.text


@pytest.mark.usefixtures("compilations")
def test_the_environment_can_choose_torch_or_a_level(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CHOICE_VARIABLE, "torch")
    assert native_library() is None
    assert libraries(tmp_path) == []
    native_library.cache_clear()
    monkeypatch.setenv(CHOICE_VARIABLE, "portable")
    assert native_library() is not None
    assert [path.name.split("-")[0] for path in libraries(tmp_path)] == ["portable"]
