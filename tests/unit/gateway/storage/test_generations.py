"""What is remembered of generations is bounded, of their own tenant alone, and kept while somebody reads them."""

from __future__ import annotations

import gc

from radixkv.core.tokens import pack_tokens
from radixkv.gateway.backend.generations import GeneratedBranch, Generations, ToldGeneration
from radixkv.gateway.storage.transcript import nothing_said
from radixkv.generation.stream import Delta


def told(generation_id: str, namespace: str = "a", length: int = 10) -> ToldGeneration:
    return ToldGeneration(
        generation_id, nothing_said(namespace), "", pack_tokens(range(length)), [GeneratedBranch(), GeneratedBranch()]
    )


def test_what_was_told_of_a_branch_is_there() -> None:
    generations, one = Generations(), told("one")
    generations.begin(one)
    generations.grow(one, Delta(1, (1, 2), "he"))
    generations.grow(one, Delta(0, (9,), ""))
    generations.grow(one, Delta(1, (3,), "llo"))
    found = generations.find("a", "one")
    assert found is one
    assert [(list(branch.tokens), branch.text) for branch in found.branches] == [([9], ""), ([1, 2, 3], "hello")]


def test_another_tenant_finds_nothing() -> None:
    generations, one = Generations(), told("one")
    generations.begin(one)
    assert generations.find("b", "one") is None


def test_the_tenant_that_has_most_gives_way_and_what_is_read_stays() -> None:
    generations = Generations(max_remembered=4)
    generations.begin(told("quiet", "b"))
    read = told("read")
    generations.begin(read)
    for number in range(20):
        generations.begin(told(str(number)))
    gc.collect()
    known = [name for name in ("quiet", "read", "0", "17", "18", "19") if generations.find("a", name)]
    assert known == ["read", "17", "18", "19"]
    assert generations.find("b", "quiet") is not None
    generations.grow(read, Delta(0, (1,), "x"))
    assert read.branches[0].text == "x"
    del read
    gc.collect()
    assert generations.find("a", "read") is None


def test_tokens_are_bounded_as_they_come() -> None:
    generations = Generations(max_tokens=100)
    one, other = told("one", length=40), told("other", "b", length=50)
    generations.begin(one)
    generations.begin(other)
    del one
    generations.grow(other, Delta(0, tuple(range(20)), "x"))
    gc.collect()
    assert generations.find("b", "other") is other, "its reader holds it"
    assert generations.find("a", "one") is not None, "the other one had most"
    del other
    gc.collect()
    assert generations.find("b", "other") is None
