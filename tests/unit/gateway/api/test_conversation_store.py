"""Conversations as they are stored: trees of messages, counted, bounded, safe against the end of the process."""

from __future__ import annotations

import asyncio
import hashlib
import random
import sqlite3
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from radixkv.gateway.api.conversations import writing as writing_module
from radixkv.gateway.api.conversations.conversation_service import ConversationService
from radixkv.gateway.api.conversations.messages import DEFAULT_TITLE, Message, new_id, title_of
from radixkv.gateway.api.conversations.store import rows
from radixkv.gateway.api.conversations.store import search as search_module
from radixkv.gateway.api.conversations.store.search import search
from radixkv.gateway.api.conversations.store.store import ConversationStore, Growth
from radixkv.gateway.api.conversations.store.trash_store import TRASH_S, Expired
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.storage import database_schema
from radixkv.gateway.storage.database import Database
from radixkv.gateway.storage.transcripts import Transcripts
from radixkv.generation.request import ModelInfo


@pytest.fixture
def database(any_state: Path | str) -> Iterator[Database]:
    with Database(any_state) as database:
        yield database


@pytest.fixture
def store(database: Database) -> ConversationStore:
    return ConversationStore(database, max_conversations=20, max_bytes=100_000, clock=lambda: 1000.0)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def message(text: str, parent: str | None = None, role: str = "user", status: str = "complete") -> Message:
    return Message(new_id("msg"), parent, role, text, 5.0, status=status)


class NoReader:
    """A worker without a chat template: nothing is remembered."""

    async def model(self) -> ModelInfo:
        return ModelInfo("m", 4096, 50_000, 16, (2,), False)


def usage(database: Database) -> tuple[int, int]:
    """What the database counts for namespace "a": conversations, bytes."""
    query = "SELECT num_conversations, size_bytes FROM conversation_usage WHERE namespace = 'a'"
    row = database.submit(lambda c: c.execute(query).fetchone()).result()
    return (0, 0) if row is None else tuple(row)


# -- titles


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Hello\nthere", "Hello"),
        ("  \n\r\n  Hello  \r\nthere", "Hello"),
        (" \n ", DEFAULT_TITLE),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 60),
        (f"{'word ' * 12}end", ("word " * 12).strip()),
        (f"{'x' * 59} yy", "x" * 59),
        (f"{'x' * 60} yy", "x" * 60),
    ],
)
def test_a_title_is_the_first_line_cut_between_words(text: str, title: str) -> None:
    assert title_of(text) == title
    assert len(title) <= 60


# -- trees


def test_messages_make_a_tree_and_every_change_a_version(store: ConversationStore) -> None:
    async def story() -> None:
        made = await store.create("a")
        assert (made.title, made.version, made.head, made.num_messages) == (DEFAULT_TITLE, 0, None, 0)
        first = message("first\nline")
        change = await store.add("a", made.id, first, 0)
        assert (change.conversation.title, change.conversation.head) == ("first", first.id)
        reply = message("", first.id, "assistant", "running")
        begun = await store.begin("a", made.id, [reply], 0)
        assert begun.conversation.version > change.conversation.version
        ended = await store.finish(made.id, [Message(reply.id, first.id, "assistant", "done", 5.0)], told=50)
        assert ended is not None
        assert (ended.conversation.version, ended.messages[0].seq) == (51, 51)
        edited = message("another first")
        await store.add("a", made.id, edited, 0)
        conversation, messages = await store.open("a", made.id)
        assert (conversation.title, conversation.num_messages) == ("first", 3)
        assert [(each.id, each.parent, each.text) for each in messages] == [
            (first.id, None, "first\nline"),
            (reply.id, first.id, "done"),
            (edited.id, None, "another first"),
        ]
        assert [each.id for each in await store.path("a", made.id, reply.id)] == [first.id, reply.id]

    run(story())


def test_what_is_removed_is_all_that_is_below(store: ConversationStore, database: Database) -> None:
    source = random.Random(5)

    async def story() -> None:
        made = await store.create("a")
        parents: dict[str, str | None] = {}
        for number in range(60):
            parent = source.choice([None, *parents]) if number else None
            one = message(f"text {number}", parent)
            await store.add("a", made.id, one, 0)
            parents[one.id] = parent
        head: str | None = next(reversed(parents))
        while parents:
            wanted = source.choice(list(parents))
            path, above = [wanted], parents[wanted]
            while above is not None:
                path.append(above)
                above = parents[above]
            assert [each.id for each in await store.path("a", made.id, wanted)] == path[::-1]
            change, told_above = await store.remove("a", made.id, wanted, 0)
            below = {wanted}
            for each, parent in parents.items():  # parents come first
                if parent in below:
                    below.add(each)
            assert {each.id for each in change.messages} == below
            assert [each.id for each in told_above] == path[:0:-1]
            for each in below:
                del parents[each]
            conversation, messages = await store.open("a", made.id)
            assert {each.id: each.parent for each in messages} == parents
            assert conversation.num_messages == len(parents)
            if head in below:
                head = path[1] if len(path) > 1 else next(reversed(parents), None)
            assert conversation.head == head
        assert usage(database) == (1, 0)

    run(story())


def test_after_a_removal_one_stands_above_what_is_gone_though_another_branch_is_later(store: ConversationStore) -> None:
    """The head is where the reader stands: nothing but the loss of it moves him, and then no further than need be."""

    async def story() -> None:
        asked, begun = message("?"), message("other")
        first, second = message("one", asked.id, "assistant"), message("two", asked.id, "assistant")
        below, later = message("more", first.id), message("later", begun.id, "assistant")
        made = await store.create("a", messages=[asked, begun, second, later, first, below])

        async def removed(gone: Message) -> str | None:
            return (await store.remove("a", made.id, gone.id, 0))[0].conversation.head

        leaf = message("leaf", below.id, "assistant")
        assert (await store.add("a", made.id, leaf, 0)).conversation.head == leaf.id
        assert await removed(later) == leaf.id, "it stood elsewhere"
        late = message("late", begun.id, "assistant")
        await store.add("a", made.id, late, 0)
        assert await removed(late) == begun.id, "the message above, not the latest"
        again = message("again", below.id, "assistant")
        await store.add("a", made.id, again, 0)
        assert await removed(below) == first.id, "above all that is gone"
        assert await removed(first) == asked.id, "not the sibling"
        assert await removed(asked) == begun.id, "nothing stands above: the latest of what is left"
        assert await removed(begun) is None
        assert (await store.open("a", made.id))[1] == []

    run(story())


def test_no_two_updates_are_told_with_one_time(store: ConversationStore) -> None:
    async def story() -> None:
        made = [await store.create("a") for _ in range(12)]
        await store.change("a", made[3].id, {"title": "x"}, 0)
        seen: list[str] = []
        before_s = None
        while page := await store.page("a", 5, before_s):
            seen += [each.id for each in page]
            before_s = page[-1].updated_s
        assert seen == [each.id for each in (made[3], *reversed(made[4:]), *reversed(made[:3]))]

    run(story())


# -- bounds


def test_what_is_used_is_counted_and_bounded(
    store: ConversationStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing_module, "MAX_MESSAGES", 5)

    async def story() -> None:
        made = await store.create("a", messages=[message("é" * 10) for _ in range(5)])
        assert usage(database) == (1, 5 * (rows.ROW_BYTES + 20))
        with pytest.raises(ApiError, match="at most 5 messages; delete branches"):
            await store.add("a", made.id, message("x"), 0)
        with pytest.raises(ApiError, match="at most 5 messages"):
            await store.create("a", messages=[message("x") for _ in range(6)])
        assert usage(database) == (1, 5 * (rows.ROW_BYTES + 20)), "what was refused has left nothing"
        other = await store.create("a")
        await store.add("a", other.id, message("x" * 80_000), 0)
        with pytest.raises(ApiError, match="at most 100,000 bytes in all; delete some"):
            await store.add("a", other.id, message("y" * 20_000), 0)
        await store.add("b", (await store.create("b")).id, message("y" * 90_000), 0)
        await store.delete("a", other.id)
        assert usage(database) == (1, 5 * (rows.ROW_BYTES + 20))
        for _ in range(19):
            await store.create("a")
        with pytest.raises(ApiError, match="20 conversations are kept already; delete some"):
            await store.create("a")
        assert usage(database)[0] == 20

    run(story())


def test_a_reply_that_grows_is_counted_as_it_is_saved(store: ConversationStore, database: Database) -> None:
    async def story() -> None:
        asked = message("?")
        made = await store.create("a", messages=[asked])
        reply = message("", asked.id, "assistant", "running")
        await store.begin("a", made.id, [reply], 0)
        before = usage(database)[1]
        await store.save([Growth(made.id, reply.id, "four", 9)])
        assert usage(database)[1] == before + 4
        assert (await store.open("a", made.id))[0].version == 9
        reply.text, reply.status = "all of it", "complete"
        await store.finish(made.id, [reply], 9)
        await store.save([Growth(made.id, reply.id, "late", 10)])
        assert (await store.message("a", made.id, reply.id)).text == "all of it"
        assert usage(database)[1] == before + 9

    run(story())


def test_a_conversation_has_a_bound_of_bytes_of_its_own(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing_module, "MAX_CONVERSATION_BYTES", 1000)

    async def story() -> None:
        made = await store.create("a", messages=[message("x" * 600)])
        with pytest.raises(ApiError, match="at most 1,000 bytes; delete branches"):
            await store.add("a", made.id, message("x" * 600), 0)
        await store.add("a", (await store.create("a")).id, message("x" * 600), 0)

    run(story())


# -- repeats and conflicts


def test_the_same_message_again_changes_nothing(store: ConversationStore) -> None:
    async def story() -> None:
        made = await store.create("a")
        one = message("hi")
        first = await store.add("a", made.id, one, 0)
        again = await store.add("a", made.id, Message(one.id, None, "user", "hi", 99.0), 0)
        assert again.is_repeat
        assert again.messages == first.messages
        assert (await store.open("a", made.id))[0] == first.conversation
        with pytest.raises(ApiError, match="another message has the id"):
            await store.add("a", made.id, Message(one.id, None, "user", "ho", 99.0), 0)
        taken = Message(one.id, one.id, "assistant", "", 5.0)
        with pytest.raises(ApiError, match="another message has the id"):
            await store.begin("a", made.id, [message("", one.id, "assistant"), taken], 0)
        assert (await store.open("a", made.id))[0] == first.conversation

    run(story())


def test_nothing_is_there_for_another_namespace(store: ConversationStore) -> None:
    async def story() -> None:
        one = message("hi")
        made = await store.create("a", messages=[one])
        for call in (
            store.open("b", made.id),
            store.change("b", made.id, {"title": "x"}, 0),
            store.delete("b", made.id),
            store.add("b", made.id, message("x"), 0),
            store.begin("b", made.id, [message("", one.id, "assistant")], 0),
            store.message("b", made.id, one.id),
            store.path("b", made.id, one.id),
            store.replies("b", made.id, one.id),
            store.remove("b", made.id, one.id, 0),
        ):
            with pytest.raises(ApiError, match="not found") as refusal:
                await call
            assert refusal.value.status == 404
        assert await store.page("b", 10) == []

    run(story())


# -- searching


def test_a_search_goes_on_where_its_slice_ended(
    store: ConversationStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "SLICE_S", 0.0)

    async def story() -> None:
        wanted = []
        for number in range(9):
            texts = [f"nothing {each}" for each in range(number)] + (["A NEEDLE here"] if number % 2 else [])
            made = await store.create("a", messages=[message(text) for text in texts])
            if number % 2:
                wanted.insert(0, made.id)
        assert [each.conversation.id for each in await search(database, "a", "needle", 10)] == wanted
        first = await search(database, "a", "needle", 2)
        assert [each.conversation.id for each in first] == wanted[:2]
        rest = await search(database, "a", "needle", 10, first[-1].conversation.updated_s)
        assert [each.conversation.id for each in rest] == wanted[2:]
        assert await search(database, "b", "needle", 10) == []

    run(story())


@pytest.mark.parametrize("slice_s", [0.0, 60.0])
def test_a_search_tells_the_newest_messages_and_where_they_have_it(
    store: ConversationStore, database: Database, monkeypatch: pytest.MonkeyPatch, slice_s: float
) -> None:
    monkeypatch.setattr(search_module, "SLICE_S", slice_s)

    async def story() -> None:
        texts = [f"number {number}: a needle" for number in range(search_module.MAX_HITS + 3)]
        messages = [message(text) for text in texts]
        await store.create("a", messages=[*messages, message("none")])
        (found,) = await search(database, "a", "NEEDLE", 10)
        assert [hit.message for hit in found.hits] == [each.id for each in messages[:2:-1]]
        assert found.has_more_hits
        await store.create("a", "a needle in the title")
        latest = (await search(database, "a", "needle", 10))[0]
        assert (latest.hits, latest.has_more_hits) == ([], False)

    run(story())


@given(st.text(max_size=400), st.text(min_size=1, max_size=4), st.integers(0, 400))
def test_what_a_hit_marks_is_what_was_searched_for(rest: str, needle: str, place: int) -> None:
    text = (rest[:place] + needle + rest[place:]).encode(errors="ignore").decode()
    folded = needle.encode(errors="ignore").decode().casefold()
    assume(folded)
    row: Any = {"id": "m", "role": "user", "created_s": 1.0, "text": text}
    hit = search_module._hit(row, folded)
    assert hit is not None
    assert folded in text[hit.position :].casefold()
    flat = "".join(" " if character.isspace() else character for character in needle).casefold()
    for begin, end in hit.marks:
        marked = hit.excerpt[begin:end].casefold()
        assert marked.replace("…", "") in text.casefold() or flat in marked or folded in marked
        assert 0 <= begin < end <= len(hit.excerpt)
    assert len(hit.excerpt) <= 242


@pytest.mark.parametrize(
    ("text", "needle", "excerpt", "marks"),
    [
        ("Straße und STRASSE", "strasse", "Straße und STRASSE", [(0, 6), (11, 18)]),
        ("one\ntwo\nthree", "two", "one two three", [(4, 7)]),
        ("one\ntwo", "one\ntwo", "one two", [(0, 7)]),
        (f"{'x' * 100} needle {'y' * 300}", "needle", f"…{'x' * 59} needle {'y' * 173}…", [(61, 67)]),
    ],
)
def test_an_excerpt_shows_the_text_around_a_hit(text: str, needle: str, excerpt: str, marks: Any) -> None:
    row: Any = {"id": "m", "role": "user", "created_s": 1.0, "text": text}
    hit = search_module._hit(row, needle.casefold())
    assert hit is not None
    assert (hit.excerpt, [(begin, end) for begin, end in hit.marks]) == (excerpt, marks)


# -- what is kept of a whole conversation


def test_what_is_kept_of_a_conversation_counts_and_is_bounded(store: ConversationStore, database: Database) -> None:
    async def story() -> None:
        made = await store.create("a", kept={"settings": '{"seed": 1}'})
        assert usage(database) == (1, 11)
        changed = await store.change("a", made.id, {"settings": '{"stop": ["é"]}'}, 9)
        assert (changed.settings, changed.version, changed.updated_s) == ({"stop": ["é"]}, 10, made.updated_s)
        assert usage(database) == (1, len('{"stop": ["é"]}'.encode()))
        with pytest.raises(ApiError, match="bytes in all"):
            await store.change("a", made.id, {"settings": f'{{"stop": ["{"x" * 100_000}"]}}'}, 0)
        assert (await store.about("a", made.id)) == changed
        renamed = await store.change("a", made.id, {"title": "T"}, 0)
        assert renamed.updated_s > made.updated_s
        assert (await store.change("a", made.id, {"settings": None}, 0)).settings is None
        assert usage(database) == (1, 0)
        with pytest.raises(ApiError, match="not found"):
            await store.change("b", made.id, {"title": "T"}, 0)
        stops = {"settings": {"stop": ["x" * 40]}}
        await store.add("a", made.id, Message(new_id("msg"), None, "assistant", "1234", 5.0, details=stops), 0)
        assert usage(database) == (1, rows.ROW_BYTES + 44)
        await store.delete("a", made.id)
        assert usage(database) == (0, 0)

    run(story())


# -- the trash


def test_whatever_is_thrown_away_and_brought_back_counts_and_keeps_its_order(
    store: ConversationStore, database: Database
) -> None:
    source = random.Random(11)

    async def story() -> None:
        made = await store.create("a")
        texts: dict[str, Message] = {}
        for number in range(40):
            parent = source.choice([None, *texts]) if number else None
            one = message(f"text {number}", parent)
            await store.add("a", made.id, one, 0)
            texts[one.id] = one
        size = usage(database)[1]
        trash: list[str] = []
        for _ in range(60):
            _, live = await store.open("a", made.id)
            if live and source.random() < 0.6:
                wanted = source.choice(live).id
                change = await store.trash.throw_branch("a", made.id, wanted, 0)
                assert change.messages[0].id == wanted
                trash.append(wanted)
            elif trash:
                wanted = source.choice(trash)
                if texts[wanted].parent in {None, *(each.id for each in live)}:
                    change = await store.trash.restore_branch("a", made.id, wanted, 0)
                    assert change.messages[0].id == wanted
                    trash.remove(wanted)
                else:
                    with pytest.raises(ApiError, match="bring that back first"):
                        await store.trash.restore_branch("a", made.id, wanted, 0)
            conversation, live = await store.open("a", made.id)
            assert usage(database) == (1, size), "it counts wherever it is"
            assert conversation.num_messages == len(live)
            assert {each.top.id for each in await store.trash.branches("a", made.id)} == set(trash)
            seen: set[str | None] = {None}
            for each in live:
                assert each.parent in seen, "parents come first"
                assert (each.text, each.parent) == (texts[each.id].text, texts[each.id].parent)
                seen.add(each.id)
            assert conversation.head is None or conversation.head in seen
        assert len(await store.delete("a", made.id)) == 40
        assert usage(database) == (0, 0)

    run(story())


def test_what_is_restored_while_the_trash_is_emptied_stays(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    transcripts: Any = Transcripts(NoReader(), database)  # type: ignore[arg-type]  # as much of one as is asked
    service = ConversationService(database, transcripts, max_conversations=9, max_bytes=10**6, clock=lambda: 1000.0)
    expired = service.store.trash.expired

    async def story() -> None:
        made = await service.store.create("a", messages=[message("x")])
        await service.throw("a", made.id)

        async def restored_meanwhile(_: float) -> list[Expired]:
            found = await expired(1000.0)
            await service.restore("a", made.id)
            return found

        monkeypatch.setattr(service.store.trash, "expired", restored_meanwhile)
        assert await service.sweep() == 1
        assert [each.text for each in (await service.view("a", made.id))[1]] == ["x"]

    run(story())


def test_what_was_thrown_away_ends_after_its_time(database: Database) -> None:
    now = [1000.0]
    service = ConversationService(
        database,
        Transcripts(NoReader(), database),  # type: ignore[arg-type]  # as much of one as is asked
        max_conversations=9,
        max_bytes=10**6,
        clock=lambda: now[0],
    )
    store = service.store

    async def story() -> None:
        first, second = message("first"), message("second")
        whole, part = (
            await store.create("a", messages=[message("x")]),
            await store.create("a", messages=[first, second]),
        )
        await service.throw("a", whole.id)
        await service.throw_branch("a", part.id, second.id)
        now[0] += TRASH_S - 1
        assert await service.sweep() == 0
        await service.restore("a", whole.id)
        await service.throw("a", whole.id)
        now[0] += 1
        assert await service.sweep() == 1, "the branch; the conversation was thrown away again since"
        assert await store.trash.branches("a", part.id) == []
        with pytest.raises(ApiError, match="not found"):
            await service.restore_branch("a", part.id, second.id)
        now[0] += TRASH_S
        assert await service.sweep() == 1
        with pytest.raises(ApiError, match="not found"):
            await service.restore("a", whole.id)
        assert [each.text for each in (await store.open("a", part.id))[1]] == ["first"]
        assert usage(database) == (1, rows.ROW_BYTES + 5)

    run(story())


# -- across processes


RELEASED = "9c31ff"
"""Digest of the steps that files in use were made by."""


def test_a_file_of_a_released_version_opens_with_all_it_holds(tmp_path: Path) -> None:
    steps = database_schema.STEPS[:4]
    assert hashlib.sha256("".join(steps).encode()).hexdigest()[:6] == RELEASED, "what a file was made by never changes"
    path = tmp_path / "state.sqlite"
    before = sqlite3.connect(path)
    before.executescript(f"{''.join(steps)} PRAGMA user_version = 4;")
    before.execute(
        "INSERT INTO conversations (id, namespace, title, created_s, updated_s, version, head) "
        "VALUES ('conv_1', 'a', 'Old', 1.0, 2.0, 7, 'm2')"
    )
    message_row = (
        "INSERT INTO messages (conversation, id, parent, role, text, status, created_s, seq, details, size_bytes) "
        "VALUES ('conv_1', ?, ?, ?, ?, 'complete', 3.0, 7, ?, 260)"
    )
    before.execute(message_row, ("m1", None, "user", "asks", None))
    before.execute(message_row, ("m2", "m1", "assistant", "says", '{"model": "m"}'))
    before.commit()
    before.close()

    async def story(store: ConversationStore) -> None:
        conversation, messages = await store.open("a", "conv_1")
        assert (conversation.title, conversation.head, conversation.num_messages) == ("Old", "m2", 2)
        assert [(each.id, each.parent, each.text) for each in messages] == [("m1", None, "asks"), ("m2", "m1", "says")]
        assert messages[1].details == {"model": "m"}
        assert (conversation.settings, conversation.tags, conversation.trashed_s) == (None, (), None)
        assert not conversation.is_pinned
        assert (messages[1].is_starred, messages[1].name) == (False, None)
        await store.change("a", "conv_1", {"settings": '{"seed": 3}'}, 0)
        await store.add("a", "conv_1", message("more", "m2"), 0)

    with Database(path) as database:
        run(story(ConversationStore(database)))
        assert usage(database) == (1, 2 * 260 + rows.ROW_BYTES + 4 + len('{"seed": 3}'))


def test_a_file_of_the_version_before_keeps_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    before = sqlite3.connect(path)
    before.executescript(f"{database_schema.STEPS[0]} PRAGMA user_version = 1;")
    columns = "key, namespace, tokens, num_reply, decoded, created_s"
    before.execute(f"INSERT INTO transcripts ({columns}) VALUES (x'01', 'a', x'02', 0, x'', 1.0)")
    values = "('r', 'a', 1.0, 2.0, 'completed', '{}', '[]', 10)"
    before.execute(
        "INSERT INTO responses (id, namespace, created_s, expires_s, status, body, input, size_bytes) VALUES " + values
    )
    before.commit()
    before.close()

    async def story(store: ConversationStore) -> None:
        await store.create("a", messages=[message("hi")])

    for number in range(2):
        with Database(path) as database:
            run(story(ConversationStore(database)))
            for table, count in (("transcripts", 1), ("responses", 1), ("usage", 1), ("conversations", number + 1)):
                query = f"SELECT COUNT(*) FROM {table}"
                assert database.submit(lambda c, q=query: c.execute(q).fetchone()[0]).result() == count  # type: ignore[misc]
            assert usage(database) == (number + 1, (number + 1) * (rows.ROW_BYTES + 2))


def test_what_was_written_when_the_process_ended_has_failed_and_keeps_its_text(tmp_path: Path) -> None:
    ids: dict[str, str] = {}

    async def before(store: ConversationStore) -> None:
        asked = message("?")
        made = await store.create("a", messages=[asked])
        reply = message("", asked.id, "assistant", "running")
        await store.begin("a", made.id, [reply], 0)
        await store.save([Growth(made.id, reply.id, "half of", 12)])
        ids.update(conversation=made.id, reply=reply.id)

    async def after(store: ConversationStore) -> None:
        reply = await store.message("a", ids["conversation"], ids["reply"])
        assert (reply.status, reply.text) == ("failed", "half of")
        assert reply.error == "the server ended before the reply was finished"
        assert reply.seq > 12 + 100_000, "later than anything that may have been told"
        assert (await store.open("a", ids["conversation"]))[0].version == reply.seq

    for story in (before, after, after):
        with Database(tmp_path / "state.sqlite") as database:
            run(story(ConversationStore(database)))


def test_of_two_branches_of_one_id_in_the_trash_none_is_mixed_into_the_other(store: ConversationStore) -> None:
    async def story() -> None:
        made = await store.create("a", None, [message("root")])
        twice = Message("twice", None, "user", "said", 5.0)
        for _ in range(2):
            await store.add("a", made.id, twice, 0)
            await store.trash.throw_branch("a", made.id, "twice", 0)
        with pytest.raises(ApiError, match="twice"):
            await store.trash.restore_branch("a", made.id, "twice", 0)
        assert len((await store.open("a", made.id))[1]) == 1

    run(story())
