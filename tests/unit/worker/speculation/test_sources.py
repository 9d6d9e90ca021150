"""Bounds and places of the sources of drafts."""

from __future__ import annotations

import random
from array import array

from drafts import a_branch

from radixkv.worker.speculation.ngrams import index_bytes
from radixkv.worker.speculation.sources import Agreement, Draft, OwnText, Predictions, RecentReplies, Source


def noise(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(1000, 50_000), k=length)


def test_a_reply_that_repeats_its_prompt_is_drafted_from_it() -> None:
    text = noise(1, 100)
    draft = OwnText(1 << 20).find(a_branch(text, text[20:40]), 16)
    assert draft is not None
    assert draft == Draft(Source.OWN, 20, text[40:56], [Agreement.ONE] * 16)


def test_a_loop_goes_on() -> None:
    draft = OwnText(1 << 20).find(a_branch(noise(1, 20), [1, 2, 3, 4] * 5), 10)
    assert draft is not None
    assert list(draft.tokens) == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]


def test_histories_past_the_bytes_have_no_drafts_until_others_end() -> None:
    source = OwnText(index_bytes(1024))
    one, other = a_branch(noise(1, 900), noise(1, 900)[:20]), a_branch(noise(2, 900), noise(2, 900)[:20])
    assert source.find(one, 4) is not None
    assert source.find(other, 4) is None
    source.ended(one.generation)
    assert source.find(other, 4) is not None
    assert OwnText(index_bytes(1024) - 1).find(one, 4) is None, "to the byte"


def test_a_history_that_grows_counts_once_and_in_whole_when_it_ends() -> None:
    source, text = OwnText(index_bytes(1024)), noise(1, 600)
    one, other = a_branch(text, text[:20]), a_branch(noise(2, 900), noise(2, 900)[:20])
    for _ in range(3):
        assert source.find(one, 4) is not None
        one.tokens.extend(text[:20])
    one.tokens.extend(text[:400])
    assert source.find(one, 4) is None, "twice as much would not fit"
    source.ended(one.generation)
    assert source.find(other, 4) is not None


def test_a_reply_is_found_by_the_end_of_its_prompt_and_ends_where_it_ended() -> None:
    source, prompt, reply = RecentReplies(1 << 20), noise(1, 100), noise(2, 30)
    source.ended(a_branch(prompt, reply).generation)
    draft = source.find(a_branch(prompt, reply[:1]), 16)
    assert draft is not None
    assert list(draft.tokens) == reply[1:17]
    draft = source.find(a_branch(prompt, reply[:28]), 16)
    assert draft is not None
    assert list(draft.tokens) == reply[28:]
    assert source.find(a_branch(prompt, reply), 16) is None
    source.ended(a_branch(noise(3, 100), noise(4, 30)).generation)
    assert source.find(a_branch(prompt, reply), 16) is None, "another reply does not go on from it"


def test_most_replies_decide_what_is_drafted_and_of_equally_many_the_latest() -> None:
    one, many, most, alone = Agreement.ONE, Agreement.ALL_OF_MANY, Agreement.MOST, Agreement.ALL
    source, prompt, found = RecentReplies(1 << 20), noise(1, 100), []
    for reply in ([1, 2, 3, 4], [1, 5, 6, 7], [1, 2, 3, 8], [1, 5, 6], [1, 2]):
        source.ended(a_branch(prompt, [9, *reply]).generation)
        draft = source.find(a_branch(prompt, [9]), 8)
        assert draft is not None
        found.append((draft.tokens, draft.agreements))
    assert found == [
        ([1, 2, 3, 4], [one] * 4),
        ([1, 5, 6, 7], [alone, most, one, one]),
        ([1, 2, 3, 8], [alone, most, alone, most]),
        ([1, 5, 6], [many, most, alone]),
        ([1, 2, 3, 8], [many, most, most, most]),
    ]


def test_one_token_alone_is_a_match() -> None:
    prompt = noise(1, 50)
    draft = OwnText(1 << 20).find(a_branch(prompt, [7, prompt[20]]), 3)
    assert draft is not None
    assert (draft.length, draft.tokens) == (1, prompt[21:24])


def test_a_match_that_is_shorter_than_asked_for_makes_no_draft() -> None:
    text = noise(1, 60)
    branch = a_branch(text, text[20:30])
    branch.generation.rules.prediction = array("I", text[20:])
    recent = RecentReplies(1 << 20)
    recent.ended(a_branch(noise(2, 20), text).generation)
    for source in (OwnText(1 << 20), Predictions(1 << 20), recent):
        assert source.find(branch, 4, 10) is not None
        assert source.find(branch, 4, 11) is None


def test_past_the_end_of_its_text_a_draft_goes_on_with_itself() -> None:
    text = [1, 2, 30, 41, 1, 2, 30, 42, 1, 2, 50, 43, 1, 2]
    draft = OwnText(1 << 20).find(a_branch(text[:5], text[5:]), 12)
    assert draft is not None
    assert draft.tokens == [30, 42, 1, 2, 50, 43, 1, 2, 30, 42, 1, 2]
    assert draft.agreements == [Agreement.MOST, Agreement.MOST, *[Agreement.ONE] * 10]


def test_a_prediction_is_drafted_from_its_beginning_and_again_where_it_comes_back() -> None:
    text = array("I", noise(3, 40))
    branch = a_branch(noise(1, 20), [])
    branch.generation.rules.prediction = text
    for said, expected in (([], text[:4]), (text[:3], text[3:7]), ([7, text[9]], text[10:14]), (text[-2:], [])):
        del branch.tokens[20:]
        branch.tokens.extend(said)
        draft = Predictions(1 << 20).find(branch, 4)
        assert (list(draft.tokens) if draft else []) == list(expected)


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    max_bytes = 1 << 18
    source = RecentReplies(max_bytes)
    for number in range(300):
        namespace = f"tenant{number % 7}"
        source.ended(a_branch(noise(number, 20), noise(1000 + number, 200), namespace).generation)
        assert source.size_bytes <= max_bytes
    last, first = (a_branch(noise(n, 20), noise(1000 + n, 200)[:5], f"tenant{n % 7}") for n in (299, 5))
    assert source.find(last, 4) is not None
    assert source.find(first, 4) is None


def test_one_namespace_gets_up_to_a_quarter_of_the_memory_and_more_than_an_eighth() -> None:
    source, sizes = RecentReplies(1 << 18), []
    for number in range(30):
        source.ended(a_branch(noise(number, 20), noise(1000 + number, 200)).generation)
        sizes.append(source.size_bytes)
    assert (1 << 15) < max(sizes) <= (1 << 16)


def test_no_memory_keeps_nothing() -> None:
    source = RecentReplies(0)
    source.ended(a_branch(noise(1, 20), noise(2, 200)).generation)
    assert source.size_bytes == 0
    assert OwnText(0).find(a_branch([1, 2, 3, 4], [1, 2, 3]), 4) is None


def test_what_is_cleared_is_gone_with_what_is_derived_of_it() -> None:
    source = RecentReplies(1 << 20)
    running = a_branch(noise(1, 20), noise(2, 50), "one", "running")
    for namespace in ("one", "one#adapter=x", "other"):
        source.ended(a_branch(noise(1, 20), noise(2, 50), namespace).generation)
    source.clear("one", [running.generation])
    source.ended(running.generation)
    found = [
        source.find(a_branch(noise(1, 20), noise(2, 50)[:3], name), 4) for name in ("one", "one#adapter=x", "other")
    ]
    assert [draft is not None for draft in found] == [False, False, True]
    source.ended(a_branch(noise(1, 20), noise(2, 50), "one", "later").generation)
    assert source.find(a_branch(noise(1, 20), noise(2, 50)[:3], "one"), 4) is not None


def test_past_its_memory_a_namespace_forgets_the_older_half_and_drafts_the_rest_as_it_was() -> None:
    source, kept = RecentReplies(1 << 18), list[int]()
    for number in range(60):
        source.ended(a_branch(noise(number, 20), noise(1000 + number, 100)).generation)
        kept.append(0)
        for earlier in range(number, -1, -1):
            reply = noise(1000 + earlier, 100)
            draft = source.find(a_branch(noise(earlier, 20), reply[:30]), 8)
            if draft is None:
                break
            assert list(draft.tokens) == reply[30:38]
            kept[-1] += 1
    most = max(kept)
    assert most < 60, "there were more than it keeps"
    assert min(kept[most:]) in (most // 2, most // 2 + 1)


def test_of_a_reply_that_is_larger_than_its_memory_the_end_is_drafted() -> None:
    source, reply = RecentReplies(1 << 18), noise(1, 20_000)
    source.ended(a_branch(noise(2, 20), reply).generation)
    draft = source.find(a_branch(noise(2, 20), reply[-30:-10]), 8)
    assert draft is not None
    assert list(draft.tokens) == reply[-10:-2]
    assert source.find(a_branch(noise(2, 20), reply[:20]), 8) is None
