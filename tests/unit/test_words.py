"""Docstrings, comments, help texts, protos and READMEs name their subject and use the field's words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROSE = ("radixkv", "kernels", "bench", "protos", "README.md", "SECURITY.md")
HELP = {"help", "description", "epilog"}
UNWANTED = re.compile(
    r"""\b(?:whoever|anew|besides?|behind|tell|tells|told|telling|says|said|saying)\b
    | \b(?:some|any|every)(?:body|one)\b | \bnobody\b
    | \bno\ more\b(?!\ than) | \bnot\ any\ more\b
    | \bwho\ (?:is|are|has|have|does|do|can|may|will|asks|waits)\b
    | (?:^|[.;:]\ )who\b
    | (?:^|[.;:]\ )(?:what|how)\ (?:is|was|are|were|it|one|an?|the|they|has|can|may|must|comes|goes|stands|lies|becomes|else)\b
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
"""A request rejects, returns, reports; again, next to, after, no longer; its subject is a request, a caller, a block."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each piece of prose in a file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from python_texts(source)
        return
    is_code = False
    for number, line in enumerate(source.splitlines(), 1):
        is_code ^= line.startswith("```")
        if path.suffix == ".md" and not is_code:
            yield number, line
        elif path.suffix == ".proto" and "//" in line:
            yield number, line.split("//", 1)[1].strip()


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        found = [node.value] if isinstance(node, ast.Expr) else []
        if isinstance(node, ast.Call):
            found += [keyword.value for keyword in node.keywords if keyword.arg in HELP]
        for value in found:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.lineno, value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def files(place: str) -> list[Path]:
    root = ROOT / place
    found = [root] if root.is_file() else [path for kind in ("py", "proto", "md") for path in root.rglob(f"*.{kind}")]
    return sorted(path for path in found if "v1" not in path.parts or path.suffix == ".proto")


@pytest.mark.parametrize("place", PROSE)
def test_prose_uses_the_words_of_the_field(place: str) -> None:
    assert files(place)
    found = [
        f"{path.relative_to(ROOT)}:{line + text[: match.start()].count(chr(10))}: {match[0].strip()!r}"
        for path in files(place)
        for line, text in texts(path)
        for match in UNWANTED.finditer(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        '"""Who waits."""',
        'def f():\n    """Told anew."""',
        "x = 1  # nobody",
        'parser.add_argument("--x", help="what is kept")',
    ],
)
def test_the_words_are_found_wherever_prose_stands(source: str) -> None:
    assert any(UNWANTED.search(text) for _, text in python_texts(source))
