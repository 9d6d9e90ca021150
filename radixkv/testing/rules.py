"""The rules that a holder keeps, each by name, with the place where the protos state it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["RULES", "Broken", "Rule"]


class Rule(NamedTuple):
    """One rule: `text` in one line, `source` the message and field of `protos/radixkv/v1/` whose comment states it."""

    text: str
    source: str


class Broken(NamedTuple):
    """One breach: the rule's name, the facts, and the numbers of the messages that show it. `num_times`: how many there were
    that differ in numbers alone.
    """

    rule: str
    facts: str
    messages: tuple[int, ...]
    num_times: int = 1


_ATTACH = "workers.proto, Workers.Attach"
RULES = {
    "hello-first": Rule(
        "The first message of a stream is Hello, and only the first.", "workers.proto, AttachRequest.hello"
    ),
    "attached-first": Rule("Nothing is sent between Hello and Attached.", _ATTACH),
    "same-pool": Rule("A life of a pool keeps its shape.", "workers.proto, Hello.pool"),
    "stream-number": Rule("Each stream of a life has a higher stream_number.", "workers.proto, Hello.stream_number"),
    "incarnation-new": Rule(
        "An incarnation is not 0, and is never used again after Goodbye or a lost lease.",
        "workers.proto, Hello.incarnation",
    ),
    "step-numbers": Rule("Steps are numbered without a gap.", "workers.proto, Step.number"),
    "resend-first": Rule(
        "After a break every unanswered Step is sent again, under its number, before a new one.", _ATTACH
    ),
    "resend-unchanged": Rule("A Step that is sent again has the same ops.", _ATTACH),
    "ack-delivered": Rule(
        "No answer and no Notices are acknowledged that were not delivered.", "workers.proto, Step.acknowledged_through"
    ),
    "ack-falls": Rule(
        "Acknowledgements never fall, except in a Step that is sent again.", "workers.proto, Step.acknowledged_through"
    ),
    "notices-ack": Rule(
        "Notices are acknowledged by the messages that follow, within a TTL.",
        "workers.proto, Heartbeat.notices_acknowledged_through",
    ),
    "heartbeat": Rule("Every third of the TTL a message is sent (counted as broken from two thirds on).", _ATTACH),
    "window": Rule(
        "Unacknowledged Steps, the one being sent included, stay within max_unacknowledged_steps.",
        "workers.proto, Attached.max_unacknowledged_steps",
    ),
    "step-size": Rule(
        "A Step stays within max_ops_per_step, max_children_per_fork and max_message_bytes.",
        "workers.proto, Attached.max_ops_per_step",
    ),
    "id-in-use": Rule("The id of an open sequence is not used for a new one.", "workers.proto, Acquire.seq_id"),
    "unknown-sequence": Rule("An op names a sequence that was opened before it, or adopted.", "workers.proto, Step"),
    "use-after-release": Rule("A released sequence is not used.", "workers.proto, Release"),
    "insert-room": Rule("num_computed stays within the room.", "workers.proto, Insert.num_computed"),
    "insert-early": Rule(
        "Nothing is inserted in room whose answer is not delivered: its blocks are not known yet.",
        "workers.proto, ExtendResult",
    ),
    "insert-tokens": Rule("num_computed stays within the history.", "workers.proto, Insert.num_computed"),
    "insert-again": Rule(
        "The tokens of an insert that failed or was aborted are sent again before others.", "workers.proto, Insert"
    ),
    "insert-falls": Rule("num_computed never falls.", "workers.proto, Insert.num_computed"),
    "fork-computed": Rule("A fork's position stays within the computed tokens.", "workers.proto, Fork.position"),
    "op-valid": Rule(
        "No op is rejected as invalid, or for a sequence that is not there.", "workers.proto, OpResult.error"
    ),
    "stream-accepted": Rule("The service ends no stream for a fault of the holder.", _ATTACH),
    "adopt-first": Rule(
        "After a restart (resumed is false) adoption comes before any other op, or the holder begins a new incarnation.",
        "workers.proto, Hello.can_adopt",
    ),
    "adopt-content": Rule("An adopted block holds the history that it is adopted with.", "workers.proto, Adopt"),
    "adopt-record": Rule(
        "After a restart a holder that keeps records plays back all of them: of each block the latest, unchanged.",
        "workers.proto, BlockRecords",
    ),
    "adopt-dropped": Rule(
        "A cleared or dropped history is not adopted.", "workers.proto, Notices.cleared and Dropped.tokens"
    ),
    "adopt-sequence": Rule("An adopted sequence is as it was before the restart.", "workers.proto, AdoptSequence"),
    "quotas-back": Rule(
        "After a restart each quota is given back, before the open sequences.", "workers.proto, JournalEntry.set_quota"
    ),
    "retention-back": Rule(
        "After a restart an adopted block is given back its retention.", "workers.proto, JournalEntry.retained"
    ),
    "pins-back": Rule(
        "After a restart each pin is given back, after the history of its tokens.", "workers.proto, JournalEntry.pin"
    ),
    "awaited": Rule("Hello lists each Pending that no Notice has followed yet.", "workers.proto, Hello.awaited"),
    "block-content": Rule(
        "A cached block holds what the model computes (VerifyBlock).", "generation.proto, Generation.VerifyBlock"
    ),
    "goodbye": Rule("A holder that ends detaches by Goodbye.", "workers.proto, AttachRequest.goodbye"),
    "holder-exit": Rule("The holder ends with exit status 0.", "the command line"),
}
