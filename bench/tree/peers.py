"""The peers of the tree benchmark, and which of them are installed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bench.tree.sglang import SGLANG_VERSION, fetch_sglang, load_sglang
from bench.tree.systems import System
from bench.tree.vllm import VLLM_VERSION, fetch_vllm, load_vllm
from bench.tree.wheel import PeerMissingError, peers_folder

__all__ = ["PEER_CHOICES", "Peers", "find_peers", "load_system"]

PEER_CHOICES = ("use", "fetch", "none")


class Peers(NamedTuple):
    """The systems of installed peers, by the name of their package, and the reasons why others are missing."""

    sglang: list[System]
    vllm: list[System]
    why_missing: dict[str, str]

    @property
    def systems(self) -> list[System]:
        return [*self.sglang, *self.vllm]

    @property
    def versions(self) -> list[str]:
        return [f"sglang {SGLANG_VERSION}"] * bool(self.sglang) + [f"vllm {VLLM_VERSION}"] * bool(self.vllm)

    def why_none(self, *packages: str) -> str:
        """Reasons why any of these packages is missing; empty if none is."""
        why = [self.why_missing[package] for package in packages if package in self.why_missing]
        return "; ".join(dict.fromkeys(why))


def find_peers(choice: str, num_blocks: int, folder: Path | None = None) -> Peers:
    """The peers below `folder` (by default the user's cache); with the choice ``fetch`` they are fetched first.

    `num_blocks`: the pool of those that have one.
    """
    if choice == "none":
        why = "the peers were left out by --peer none"
        return Peers([], [], {"sglang": why, "vllm": why})
    folder = folder or peers_folder()
    found: dict[str, list[System]] = {"sglang": [], "vllm": []}
    why_missing: dict[str, str] = {}
    for package, fetch in (("sglang", fetch_sglang), ("vllm", fetch_vllm)):
        try:
            if choice == "fetch":
                fetch(folder)
            loaded = load_sglang(folder) if package == "sglang" else load_vllm(folder, num_blocks)
            found[package] = [*loaded]
        except PeerMissingError as error:
            why_missing[package] = str(error)
    return Peers(found["sglang"], found["vllm"], why_missing)


def load_system(name: str, num_blocks: int, folder: Path) -> System:
    """One of the peers' systems by its name, found before by `find_peers`.

    Raises:
        PeerMissingError: it is missing.
    """
    peers = find_peers("use", num_blocks, folder)
    for system in peers.systems:
        if system.name == name:
            return system
    raise PeerMissingError(f"{name!r} is none of {[system.name for system in peers.systems]}")
