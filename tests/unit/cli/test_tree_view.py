"""The drawing of a radix tree."""

from __future__ import annotations

from rich.console import Console

from radixkv import PrefixCache, Retention, unpack_tokens
from radixkv.cli.views.tree_view import TreeView


def drawn(cache: PrefixCache, now_s: float, *, spells: bool = False, depth: int = 4, children: int = 8) -> list[str]:
    def to_text(tokens: bytes) -> str:
        return "".join(map(chr, unpack_tokens(tokens)))

    view = TreeView(cache.dump(), now_s, to_text if spells else None, max_depth=depth, max_children=children)
    console = Console(width=200, highlight=False)
    with console.capture() as capture:
        for tree in view.trees():
            console.print(tree)
    return capture.get().splitlines()


class Bench:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.cache = PrefixCache(256, 4, clock=lambda: self.now_s)

    def store(self, text: str, namespace: str = "default") -> None:
        tokens = [ord(letter) for letter in text]
        seq = self.cache.acquire(tokens, namespace=namespace)
        self.cache.insert(seq.seq_id, len(tokens))
        self.cache.release(seq.seq_id)


def test_branches_are_drawn_with_sizes_ages_locks_and_pins() -> None:
    bench = Bench()
    bench.store("system: question")
    bench.store("system: answer", "other")
    bench.now_s = 60.0
    bench.store("system: examples")
    bench.cache.pin([ord(letter) for letter in "system: "], ttl=600)
    bench.cache.acquire([ord(letter) for letter in "system: examples!"])
    bench.now_s = 90.0
    assert drawn(bench.cache, bench.now_s, spells=True) == [
        "default  3 nodes, 6 blocks",
        "└── 0 + 8 tokens, 2 blocks  pinned 9.5 min  in use, 2  'system:'",
        "    ├── 8 + 8 tokens, 2 blocks  in use, 1  'examples'",
        "    └── 8 + 8 tokens, 2 blocks  1.5 min ago  'question'",
        "other  2 nodes, 4 blocks",
        "└── 0 + 12 tokens, 3 blocks  1.5 min ago  'system: answ'",
        "    └── 12 + 2 tokens, 1 block  tail  1.5 min ago  'er'",
    ]


def test_what_is_worth_more_or_less_than_others_says_so_and_for_how_long() -> None:
    bench = Bench()
    bench.store("aaaabbbb")
    bench.store("ccccdddd")
    bench.cache.retain(
        [ord(letter) for letter in "aaaabbbb"], retention=[Retention(0, 4, 90, 600.0), Retention(4, 8, 5)]
    )
    bench.now_s = 30.0
    bench.cache.retain([ord(letter) for letter in "cccc"], retention=[Retention(0, 4, 60, 600.0)])
    bench.cache.acquire([ord(letter) for letter in "cccc!"])
    assert drawn(bench.cache, bench.now_s, spells=True) == [
        "default  4 nodes, 4 blocks",
        "├── 0 + 4 tokens, 1 block  priority 90 for 9.5 min  30 s ago  'aaaa'",
        "│   └── 4 + 4 tokens, 1 block  priority 5  30 s ago  'bbbb'",
        "└── 0 + 4 tokens, 1 block  priority 60  in use, 1  'cccc'",
        "    └── 4 + 4 tokens, 1 block  30 s ago  'dddd'",
    ]


def test_what_is_small_or_deep_is_summed_up() -> None:
    bench = Bench()
    for letter in "abcdef":
        bench.store("head" + 8 * letter + "left")
        bench.store("head" + 8 * letter + "more" + letter * 4 * (ord(letter) - ord("a")))
    lines = drawn(bench.cache, 0.0, depth=2, children=2)
    assert lines[0].startswith("default  ")
    assert lines[1:] == [
        "└── 0 + 4 tokens, 1 block  0 ms ago  [104 101 97 100]",
        "    ├── 4 + 8 tokens, 2 blocks  0 ms ago  [102 102 102 102 102 102 …]",
        "    │   └── … 2 below, 7 blocks",
        "    ├── 4 + 8 tokens, 2 blocks  0 ms ago  [101 101 101 101 101 101 …]",
        "    │   └── … 2 below, 6 blocks",
        "    └── … 12 more, 22 blocks",
    ]


def test_an_empty_cache_has_nothing_to_draw() -> None:
    assert drawn(PrefixCache(8), 0.0) == []
