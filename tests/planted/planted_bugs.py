"""Bugs of client, service, gateway and worker, each a small change of a module's text that the tests beside it must find."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PLANTED_BUGS", "PlantedBug"]


class PlantedBug(NamedTuple):
    """In `module` of the package, `text` (which is there exactly once) becomes `bug`; each of `tests` fails.

    `is_quick`: planted by default.
    """

    name: str
    module: str
    text: str
    bug: str
    tests: tuple[str, ...]
    is_quick: bool = False


PLANTED_BUGS = (
    PlantedBug(
        "a reply of the model that is there now is remembered as one of the model before it",
        "gateway/turns/turns.py",
        'history=b"", model=b"", key=b"", stem=b""',
        'history=b"", stem=b""',
        (
            "integration/gateway/serving/test_gateway_model_replaced.py::"
            "test_a_stored_response_goes_on_in_the_ids_of_the_model_that_is_there",
        ),
    ),
    PlantedBug(
        "a running generation of another namespace can be forked by its id",
        "worker/engine/loop.py",
        "if not histories or (sees is not None and",
        "if not histories or (running is None and sees is not None and",
        (
            "integration/engine/test_engine_rounds.py::"
            "test_what_another_namespace_generates_is_unknown_whether_it_waits_runs_or_has_ended",
        ),
    ),
    PlantedBug(
        "what was cleared matches again after a restart that comes before the answer it stands behind",
        "client/journal.py",
        "            self._note(without_records(entries), number, ledger)\n",
        "            pass\n",
        (
            "stateful/test_clear_at_restart.py::"
            "test_what_was_heard_to_be_cleared_before_the_answer_that_it_stands_behind_does_not_come_back",
        ),
        is_quick=True,
    ),
    PlantedBug(
        "a block is handed out while its holder keeps a record of before a restart",
        "core/tree/allocation.py",
        "        forest.records.forget(taken)\n",
        "        pass\n",
        (
            "unit/core/tree/test_block_records.py::"
            "test_a_block_that_is_taken_though_nothing_was_played_back_is_forgotten",
        ),
        is_quick=True,
    ),
    PlantedBug(
        "a record that is not of its block is accepted",
        "core/tree/block_records.py",
        " or _SUM.pack(crc32(content, crc32(_SUMMED.pack(key, block_id)))) != told:",
        ":",
        ("unit/core/tree/test_block_records.py::test_a_damaged_record_is_refused",),
        is_quick=True,
    ),
    PlantedBug(
        "a reader of the default namespace sees every tenant's pins",
        "net/rights.py",
        '"Pins": _Rule(("reader",), _one_or_all)',
        '"Pins": _Rule(("reader",), _one)',
        ("integration/net/test_rights.py::test_a_tenant_of_the_default_namespace_has_that_one_and_no_other",),
    ),
    PlantedBug(
        "a call that waits for an answer waits for ever once the lease is lost",
        "worker/engine/loop.py",
        "        self._num_answered = self._num_submitted\n        self._batch_step.forget()\n",
        "        self._batch_step.forget()\n",
        (
            "integration/engine/test_engine_rounds.py::test_what_was_to_be_asked_of_the_cache_is_asked_"
            "though_the_lease_is_lost_before_the_answer_it_waits_for",
        ),
    ),
    PlantedBug(
        "one heartbeat per TTL in place of three",
        "client/stream.py",
        "self._silence_s / 3",
        "self._silence_s",
        (
            "integration/client/test_client_failures.py::"
            "test_who_holds_and_says_nothing_for_several_ttls_keeps_the_lease_and_all_that_is_open",
        ),
    ),
    PlantedBug(
        "work goes on for a caller who has left",
        "gateway/protocol/sse.py",
        "        leaving.cancel()\n        working.cancel()\n        await asyncio.gather(working, leaving,",
        "        leaving.cancel()\n        await asyncio.gather(leaving,",
        (
            "unit/gateway/http/test_gateway_sse.py::test_work_for_a_caller_who_leaves_is_cancelled_and_has_ended_when_that_is_told",
        ),
        is_quick=True,
    ),
    PlantedBug(
        "a fork's retention is not told to a restarted service",
        "client/ledger.py",
        "            child.retention = parent.retention\n",
        "",
        (
            "stateful/test_adoption.py::"
            "test_what_was_said_of_the_worth_of_positions_holds_of_all_that_is_computed_after_a_restart",
        ),
    ),
    PlantedBug(
        "after a removal the head jumps into a later branch",
        "gateway/api/conversations/store/store.py",
        "head = above[-1].id if above else last_message(connection, conversation_id)",
        "head = last_message(connection, conversation_id)",
        (
            "unit/gateway/api/test_conversation_store.py::"
            "test_after_a_removal_one_stands_above_what_is_gone_though_another_branch_is_later",
        ),
    ),
    PlantedBug(
        "a refusal of too many requests at once costs a request of the minute",
        "net/limits.py",
        "            is_bounded = limits.max_concurrent is not None",
        "            if account.requests is not None:\n                account.requests.left -= 1\n"
        "            is_bounded = limits.max_concurrent is not None",
        ("unit/net/test_limits.py::test_a_refusal_counts_nothing",),
        is_quick=True,
    ),
    PlantedBug(
        "of too many entries the namespace with most tokens gives way",
        "gateway/storage/transcript_cache.py",
        "key=lambda n: n.num_tokens if by_tokens else len(n.entries)",
        "key=lambda n: n.num_tokens",
        (
            "unit/gateway/storage/test_transcript_cache.py::"
            "test_of_all_namespaces_the_one_with_most_entries_gives_way_where_there_are_too_many_entries",
        ),
    ),
    PlantedBug(
        "what an assistant says to a tool is imported",
        "gateway/api/conversations/files/imports.py",
        ' and message.get("recipient") in (None, "all")',
        "",
        ("unit/gateway/api/test_conversation_imports.py::test_what_an_assistant_says_to_a_tool_is_nobodys_turn",),
        is_quick=True,
    ),
    PlantedBug(
        "copies of stop rules share a decoder",
        "worker/generations/stop_rules.py",
        "        twin._decoder = self._decoder.copy() if self._decoder else None\n",
        "",
        (
            "unit/worker/generations/test_stop_rules.py::test_two_copies_that_are_fed_different_tokens_read_what_they_would_alone",
        ),
    ),
    PlantedBug(
        "a key that passes to another tenant goes on streaming",
        "gateway/http/middleware.py",
        "self._keys.find(key) == tenant",
        "self._keys.find(key) is not None",
        (
            "integration/gateway/serving/test_gateway_keys.py::test_a_key_that_is_taken_back_ends_the_streams_that_it_opened",
        ),
    ),
    PlantedBug(
        "a stopped reply is remembered though its tokens say more than its text",
        "gateway/storage/transcripts.py",
        " or (is_cut and await self._reader.detokenize(tokens) != text)",
        "",
        ("unit/gateway/storage/test_transcripts.py::test_of_a_stopped_reply_no_more_is_remembered_than_was_told",),
    ),
    PlantedBug(
        "a reply whose end cannot be stored is told as whole",
        "gateway/api/conversations/replies/message_task.py",
        'message.status, message.error = "failed", f"it could not be stored: {error}"',
        "pass",
        (
            "unit/gateway/api/test_message_task.py::test_an_end_that_cannot_be_stored_is_told_as_a_failure_and_leaves_nothing_under_way",
        ),
    ),
    PlantedBug(
        "of equals the first come gives way",
        "worker/scheduling/preemption.py",
        "branch.num_lost, -arrival, -index",
        "branch.num_lost, arrival, index",
        (
            "unit/worker/scheduling/test_preemption.py::test_of_equals_the_latest_come_gives_way_and_the_first_never_does",
        ),
        is_quick=True,
    ),
    PlantedBug(
        "giving way does not end the recovery",
        "worker/scheduling/admission.py",
        'has been preempted for them."""\n        self._recovering.clear()\n',
        'has been preempted for them."""\n',
        (
            "unit/worker/scheduling/test_admission.py::test_an_owner_of_which_a_branch_was_preempted_begins_nothing_"
            "until_blocks_come_free_by_an_end_or_by_giving_way",
        ),
    ),
    PlantedBug(
        "white space before the end of a turn hides the end",
        "worker/generations/text.py",
        "if self.token_text(token_id).strip():",
        "if self.token_text(token_id):",
        (
            "unit/worker/generations/test_text.py::test_white_space_that_a_template_writes_before_the_end_of_a_turn_is_no_text_of_it",
        ),
    ),
    PlantedBug(
        "plain text behind a history begins as a prompt does",
        "worker/engine/prompts.py",
        "special=not kept",
        "special=True",
        (
            "unit/worker/engine/test_prompts.py::"
            "test_a_plain_text_begins_a_prompt_as_the_model_wants_it_and_never_a_second_time_behind_a_history",
        ),
    ),
    PlantedBug(
        "the time that a request is given is not told to the worker",
        "generation/wire.py",
        "    left_out=_ELSEWHERE,\n",
        '    left_out=(*_ELSEWHERE, "timeout_s"),\n',
        ("unit/service/test_wire.py::test_all_that_a_request_says_comes_through",),
    ),
    PlantedBug(
        "a check that was answered makes a late one give way",
        "net/calls/auth.py",
        "        call.at_end(lambda: self._openers.leave(token))\n",
        "",
        (
            "integration/net/test_calls_held_open.py::"
            "test_a_check_whose_request_is_late_gives_way_to_none_that_was_answered",
        ),
    ),
    PlantedBug(
        "TLS files are read anew at every look",
        "net/tls.py",
        "            self._stamp = now\n            self._tls.check()\n",
        "            self._tls.check()\n",
        (
            "unit/net/test_tls_watch.py::test_files_are_read_again_where_they_have_changed_and_make_sense_and_otherwise_left",
        ),
    ),
    PlantedBug(
        "a stream that is not read keeps what it holds",
        "net/streaming.py",
        "        await answers.aclose()\n        await asyncio.sleep",
        "        await asyncio.sleep",
        ("unit/net/test_streaming.py::test_a_late_reader_holds_nothing_meanwhile_and_gets_the_error",),
    ),
    PlantedBug(
        "a listener without room looks again at once and for ever",
        "gateway/http/listener.py",
        "                self._loop.remove_reader(self._sock)\n                self._loop.call_later",
        "                self._loop.call_later",
        (
            "unit/gateway/http/test_listener.py::test_where_there_is_no_room_one_looks_again_after_a_while_and_not_meanwhile",
        ),
    ),
    PlantedBug(
        "a refused request is not counted",
        "gateway/http/middleware.py",
        "await error_response(refusal, scope)(scope, receive, answer.send)\n            self._end(scope, answer)\n"
        "            return\n        try:\n",
        "await error_response(refusal, scope)(scope, receive, answer.send)\n            return\n        try:\n",
        ("integration/gateway/serving/test_gateway_door.py::test_a_tenants_limit_is_looked_at_before_its_body",),
    ),
    PlantedBug(
        "pins are asked of every pool",
        "client/reader.py",
        "readers.PinsRequest(pool=self.pool_name, namespace",
        "readers.PinsRequest(namespace",
        (
            "integration/client/test_client.py::"
            "test_a_reader_asks_and_changes_the_pool_and_the_namespace_that_it_names_and_no_other",
        ),
    ),
    PlantedBug(
        "a kept conversation's reply is generated in the default namespace",
        "gateway/http/request_context.py",
        "            namespace=namespace,\n            request_id",
        "            request_id",
        (
            "integration/gateway/conversations/test_conversations.py::"
            "test_every_route_generates_in_the_namespace_of_its_caller_and_under_the_id_of_the_request",
        ),
    ),
    PlantedBug(
        "a closed stream goes on waiting for a worker",
        "gateway/backend/backend.py",
        "return stream is not None and not stream.is_closed",
        "return stream is not None",
        (
            "integration/worker/test_worker_lost.py::test_a_stream_that_is_closed_while_it_waits_for_a_worker_waits_no_longer",
        ),
    ),
    PlantedBug(
        "a pin that a restarted service refused comes back with the next",
        "client/adoption.py",
        "            ledger.noted(UnpinOp(op.tokens, op.namespace))\n",
        "            pass\n",
        (
            "stateful/test_kept_over_restart.py::"
            "test_a_pin_that_a_restarted_service_refuses_does_not_come_back_with_the_next",
        ),
    ),
    PlantedBug(
        "a batch's requests are fetched again while they run",
        "gateway/api/jobs/running.py",
        "                work.last = found[-1]\n",
        "                pass\n",
        (
            "integration/gateway/jobs/test_batches.py::test_a_batch_of_more_requests_than_are_fetched_at_once_makes_each_once",
        ),
    ),
    PlantedBug(
        "a deleted list leaves its items in the file",
        "gateway/api/responses/item_lists.py",
        'connection.execute("DELETE FROM items WHERE list = ?", (list_id,))',
        "pass",
        ("integration/gateway/responses/test_item_lists.py::test_what_was_in_a_deleted_list_is_in_the_file_no_more",),
        is_quick=True,
    ),
    PlantedBug(
        "a stopping service goes on saying that it serves",
        "service/server.py",
        "        self._health.refuse()\n",
        "",
        (
            "integration/client/test_service.py::"
            "test_who_watches_the_health_of_a_stopping_service_is_told_before_its_calls_end",
        ),
    ),
    PlantedBug(
        "a block that a verification has overwritten is saved under its old name",
        "worker/storing/stored_blocks.py",
        "            self._overwritten(row.block_table[max(row.start, row.num_stored) // size : -(-end // size)])",
        "            pass",
        (
            "integration/engine/stored/test_engine_store.py::test_a_block_that_a_verification_overwrites_is_not_saved_under_its_old_name",
        ),
    ),
    PlantedBug(
        "blocks loaded for a request that is gone land in blocks that another has by now",
        "worker/storing/stored_blocks.py",
        "return self.branch.seq_id == self.seq_id and self.branch.phase is Phase.RUNNING",
        "return True",
        (
            "integration/engine/stored/test_engine_store.py::test_a_load_that_comes_late_does_not_land_in_blocks_of_another_request",
        ),
        is_quick=True,
    ),
    PlantedBug(
        "a reader writes to the blocks of a branch that was preempted",
        "worker/storing/stored_blocks.py",
        "            if not one.is_wanted:\n                one.load.end_copies()",
        "            pass",
        (
            "integration/engine/stored/test_engine_store_loads.py::test_a_reader_copies_nothing_for_a_branch_that_no_longer_waits",
        ),
    ),
    PlantedBug(
        "a reader writes to blocks that its branch computes by now",
        "worker/storing/stored_blocks.py",
        "                    for other in loads:\n                        other.load.end_copies()",
        "                    pass",
        (
            "integration/engine/stored/test_engine_store_loads.py::test_a_reader_copies_nothing_for_a_branch_that_no_longer_waits",
        ),
    ),
    PlantedBug(
        "a reply that was running at an erasure is stored under the new keys",
        "worker/storing/stored_blocks.py",
        'if branch.generation.stored_under not in (b"", keys.id):',
        "if False:",
        ("integration/engine/stored/test_engine_store.py::test_a_reply_that_runs_over_an_erasure_is_not_stored",),
    ),
    PlantedBug(
        "a sealed block opens under any name",
        "stores/secrets/sealing.py",
        "return name + num_bytes",
        "return num_bytes",
        ("unit/stores/test_sealing.py",),
    ),
    PlantedBug(
        "a namespace's leaf is found again after its erasure",
        "stores/secrets/keys.py",
        "_State(state.secret, state.cover.puncture(point))",
        "_State(state.secret, state.cover)",
        ("unit/stores/test_keys.py",),
    ),
    PlantedBug(
        "drafted tokens are published as computed",
        "worker/scheduling/scheduler.py",
        "branch.num_computed, branch.last_ran = end, turn",
        "branch.num_computed, branch.last_ran = end + len(branch.draft), turn",
        ("integration/engine/test_engine_speculation.py::test_only_accepted_tokens_are_published",),
        is_quick=True,
    ),
    PlantedBug(
        "a draw that looks back is launched before the token before it is read",
        "worker/engine/step.py",
        "depends = any(draw.num_unread and draw.branch.generation.rules.looks_back for draw in drawing)",
        "depends = False",
        ("integration/engine/test_engine_ahead.py::test_draws_that_look_back_do_not_hold_up_the_forward[given6]",),
    ),
    PlantedBug(
        "a stop within a draft is looked for once a step",
        "worker/engine/step.py",
        "            elif taken.reason is not None:\n",
        "            elif taken.reason is not None and not is_drafted:\n",
        ("integration/engine/test_engine_speculation.py::test_a_stop_string_ends_the_reply_at_every_place_of_a_draft",),
    ),
    PlantedBug(
        "drafted positions are drawn without what the reply forbids",
        "worker/engine/step.py",
        "sampler_row(draw.branch, draw.num_unread) for draw in draws]",
        "sampler_row(draw.branch, draw.num_unread)._replace(**({'adjustment': None} if draw.depth else {})) for draw in draws]",
        (
            "integration/engine/test_engine_speculation.py::test_streams_are_the_same_event_by_event[penalties]",
            "integration/engine/test_engine_speculation.py::test_streams_are_the_same_event_by_event[JSON schema]",
            "integration/engine/test_engine_speculation_draws.py::test_draws_are_as_frequent_as_defined[all at once]",
        ),
    ),
    PlantedBug(
        "drafted positions are drawn by the chance of the first one",
        "worker/engine/step.py",
        "sampler_row(draw.branch, draw.num_unread) for draw in draws]",
        "sampler_row(draw.branch, draw.num_unread)._replace(position=len(draw.branch.tokens) - draw.depth) for draw in draws]",
        (
            "integration/engine/test_engine_speculation.py::test_streams_are_the_same_event_by_event[drawn]",
            "integration/engine/test_engine_speculation_draws.py::test_draws_are_as_frequent_as_defined[all at once]",
        ),
    ),
    PlantedBug(
        "a grammar is advanced by a token that was drafted and not drawn",
        "worker/engine/step.py",
        "            taken = generation.take(branch, token)\n",
        "            taken = generation.take(branch, token)\n"
        "            if draw.depth < len(branch.draft) and not is_drafted and generation.sampling.grammar:\n"
        "                generation.replies[branch.index]._matcher.take(branch.draft[draw.depth])\n",
        ("integration/engine/test_engine_speculation.py::test_streams_are_the_same_event_by_event[expression]",),
    ),
    PlantedBug(
        "replies are drafted from any namespace",
        "worker/speculation/sources.py",
        "replies = self._replies.get(generation.namespace)\n",
        "replies = next(iter(self._replies.values()), None)\n",
        ("integration/engine/test_engine_speculation.py::test_a_reply_is_drafted_in_its_namespace_alone",),
        is_quick=True,
    ),
    PlantedBug(
        "a reply that runs at a clear is drafted from later",
        "worker/speculation/sources.py",
        "_is_shared(generation) and generation.generation_id not in self._cleared",
        "_is_shared(generation)",
        ("integration/engine/test_engine_speculation.py::test_a_reply_that_runs_at_a_clear_is_not_kept",),
    ),
    PlantedBug(
        "replies of before a clear are drafted from",
        "worker/speculation/sources.py",
        "            self._take(name)\n",
        "            pass\n",
        (
            "integration/engine/test_engine_speculation.py::test_after_a_clear_nothing_is_drafted_from_what_was_said_before",
            "integration/engine/test_engine_speculation.py::test_a_reply_that_runs_at_a_clear_is_drafted_from_nothing_that_was_said_before",
        ),
    ),
    PlantedBug(
        "replies without prefix sharing are drafted from",
        "worker/speculation/sources.py",
        "is_kept = _is_shared(generation) and",
        'is_kept = generation.sampling.speculation == "all" and',
        ("integration/engine/test_engine_speculation.py::test_a_reply_is_drafted_in_its_namespace_alone",),
    ),
    PlantedBug(
        "requests with fewer sources are drafted from replies",
        "worker/speculation/sources.py",
        'generation.sampling.speculation == "all"',
        'generation.sampling.speculation != "none"',
        ("integration/engine/test_engine_speculation.py::test_a_request_may_have_fewer_sources_or_none",),
    ),
    PlantedBug(
        "a draft is longer than its branch's room",
        "worker/speculation/drafter.py",
        "return min(self._settings.num_tokens, branch.room - len(branch.tokens))",
        "return self._settings.num_tokens",
        ("unit/worker/speculation/test_drafter.py::test_a_draft_ends_before_what_is_no_token_and_within_the_room",),
    ),
    PlantedBug(
        "branches that read a prefix at once are drafted",
        "worker/speculation/drafter.py",
        "if readers[block_id] > 1}",
        "if readers[block_id] > 9}",
        ("unit/worker/speculation/test_drafter.py::test_branches_that_read_a_long_common_prefix_draft_nothing",),
    ),
)
