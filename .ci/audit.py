"""Whether a dependency that radixkv declares has a published vulnerability; run by Python with radixkv installed.

    audit.py PIP_AUDIT

Exits with 1 where one has. Where the advisory service cannot be reached, or knows of no package, that is printed and is no
failure: it is asked about one package first.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from typing import Any

FIRST = "grpcio"
TIMEOUT_S = 120
EXTRAS = ("worker", "gateway", "events")


def declared() -> dict[str, str]:
    """The packages that radixkv itself asks for, but for those of its tests, at the versions that are installed."""
    found = {}
    for line in metadata.requires("radixkv") or ():
        name, condition = re.match(r"[\w.-]+", line), line.partition(";")[2]
        extra = re.search(r"extra == ['\"](\w+)['\"]", condition)
        if name is None or name[0] == "radixkv" or (extra is not None and extra[1] not in EXTRAS):
            continue
        try:
            found[name[0]] = metadata.version(name[0]).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue  # another platform's
    return found


def audited(pip_audit: str, versions: dict[str, str]) -> list[dict[str, Any]]:
    """What is known of each package that anything is known of; nothing where the service cannot be reached."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(f"{name}=={version}\n" for name, version in versions.items()))
        file.flush()
        command = [pip_audit, "-r", file.name, "--no-deps", "--disable-pip", "-f", "json", "--progress-spinner", "off"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return []
    try:
        told = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(done.stderr[-500:])
        return []
    return [package for package in told if "skip_reason" not in package]


def main() -> int:
    """The exit status."""
    pip_audit, versions = sys.argv[1], declared()
    if not audited(pip_audit, {FIRST: versions[FIRST]}):
        print("dependencies not audited: no advisory service can be reached from here")
        return 0
    known = audited(pip_audit, versions)
    vulnerable = [package for package in known if package["vulns"]]
    for package in vulnerable:
        ids = ", ".join(vulnerability["id"] for vulnerability in package["vulns"])
        print(f"{package['name']} {package['version']}: {ids}")
    print(
        f"{len(known)} of {len(versions)} declared dependencies audited, {len(vulnerable)} with a known vulnerability"
    )
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
