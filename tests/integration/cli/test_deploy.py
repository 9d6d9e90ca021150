"""The units and the Containerfile name what there is, and what they start runs as an ordinary user."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from radixkv.cli import program

FOLDER = Path(__file__).resolve().parents[3] / "radixkv" / "deploy"
UNITS = sorted(FOLDER.glob("*.service"))
INSTALLED = "/opt/radixkv/bin/radixkv"
NOBODY = 65534
AS_NOBODY: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []}


def exec_start(unit: Path) -> list[str]:
    line = next(line for line in unit.read_text().splitlines() if line.startswith("ExecStart="))
    return shlex.split(line.removeprefix("ExecStart="))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_names_only_flags_that_exist(unit: Path) -> None:
    command, *arguments = exec_start(unit)
    assert command == INSTALLED
    options = program._parse(arguments)
    assert options.command == {"service": "serve"}.get(kind := unit.stem.removeprefix("radixkv-"), kind)


def test_there_is_a_unit_for_each_process_and_none_waits_longer_than_its_stop() -> None:
    assert [unit.stem for unit in UNITS] == ["radixkv-gateway", "radixkv-service", "radixkv-worker"]
    for unit in UNITS:
        settings = dict(line.split("=", 1) for line in unit.read_text().splitlines() if "=" in line and line[0] != "#")
        assert float(settings["TimeoutStopSec"]) > program._parse(exec_start(unit)[1:]).drain
        assert settings["DynamicUser"] == settings["NoNewPrivileges"] == "yes"
        assert settings["ProtectSystem"] == "strict"


def test_the_image_starts_with_flags_that_exist_and_as_no_root() -> None:
    lines = (FOLDER / "Containerfile").read_text().splitlines()
    command = json.loads(next(line for line in lines if line.startswith("CMD ")).removeprefix("CMD "))
    assert program._parse(command).command == "up"
    assert next(line for line in lines if line.startswith("USER ")) == "USER 10001"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_to_say_about_the_units(tmp_path: Path) -> None:
    here = tmp_path / "radixkv"
    here.write_text("#!/bin/sh\n")
    here.chmod(0o755)
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace(INSTALLED, str(here)))
    paths = [str(tmp_path / unit.name) for unit in UNITS]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *paths], capture_output=True, text=True, check=False, timeout=60
    )
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "radixkv" in line]
    assert not ours


def python_of_nobody() -> list[str]:
    """An interpreter of this version that an ordinary user may start, and that finds what this one does."""
    for executable in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        python = ["env", f"PYTHONPATH={FOLDER.parents[1]}:{sysconfig.get_path('purelib')}", executable, "-P"]
        probe = [*python, "-c", "import radixkv.service"]
        if subprocess.run(probe, capture_output=True, check=False, cwd="/", **AS_NOBODY).returncode == 0:
            return python
    pytest.skip("this checkout and its environment lie where an ordinary user may not look")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_the_service_of_the_unit_runs_as_an_ordinary_user_and_ends_well(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    python = python_of_nobody()
    folder = Path("/tmp") / tmp_path_factory.mktemp("deploy").name  # every folder above it may be entered by anybody
    folder.mkdir(mode=0o700)
    try:
        os.chown(folder, NOBODY, NOBODY)
        arguments = [
            word.replace("/run/radixkv", str(folder)) for word in exec_start(FOLDER / "radixkv-service.service")
        ]
        process = subprocess.Popen(
            [*python, "-m", "radixkv", *arguments[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **AS_NOBODY,
        )
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "Ctrl-C stops it" in said
        assert (folder / "service.sock").is_socket()
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=300)
        assert (process.returncode, rest) == (0, "\n" * rest.count("\n"))
        assert not (folder / "service.sock").exists()
    finally:
        shutil.rmtree(folder)
