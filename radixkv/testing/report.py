"""The report of a trial: for a person, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

from radixkv.testing.observer import Observer
from radixkv.testing.rules import RULES

__all__ = ["as_json", "as_text", "not_seen"]

_CONTEXT = 12  # messages listed per breach
_EXPECTED = {
    "Steps": "no Step was sent",
    "acquire": "no sequence was opened",
    "extend": "no sequence asked for room",
    "insert": "nothing was inserted",
    "fork": "no sequence was forked",
    "release": "no sequence was released",
    "prefixes reused": "no prompt had a cached prefix",
    "COPY": "no block was copied (a fork or a prompt that parts inside a block)",
    "streams resumed": "no stream was resumed after a break",
    "Steps sent again": "no Step was sent again",
    "Notices": "no Notices were delivered",
    "Pending": "no acquire waited for another sequence",
    "restarts to adopt after": "no restart of the service met an attached holder that can adopt",
    "Pendings at a restart": "no acquire waited while the service restarted",
    "quotas at a restart": "no quota was to be given back",
    "pins at a restart": "no pin was to be given back",
    "retained blocks at a restart": "no retention was to be given back",
    "dropped blocks at a restart": "no dropped history was still in blocks",
    "adopt_blocks": "no block was adopted by its record",
    "adopt_sequence": "no open sequence was adopted",
}
"""Counts that a thorough trial has above 0, and a line for each that is 0."""


def not_seen(observer: Observer) -> list[str]:
    """A line for each thing that the holder was not exercised by."""
    return [line for name, line in _EXPECTED.items() if not observer.seen[name]]


def as_json(observer: Observer, **more: object) -> str:
    """All of it; `more`: other members."""
    broken = [
        {
            "rule": breach.rule,
            "facts": breach.facts,
            "num_times": breach.num_times,
            "messages": {number: observer.messages.get(number, "") for number in breach.messages},
            "text": RULES[breach.rule].text,
            "source": RULES[breach.rule].source,
        }
        for breach in observer.breaches
    ]
    report = {
        **more,
        "passed": not broken,
        "breaches": broken,
        "num_breaches": dict(observer.num_breaches),
        "exercised": dict(observer.seen),
        "not_seen": not_seen(observer),
    }
    return json.dumps(report, indent=2)


def as_text(observer: Observer) -> str:
    """The report for a person."""
    return "\n".join(_lines(observer))


def _lines(observer: Observer) -> Iterator[str]:
    yield "Exercised:"
    width = max((len(name) for name in observer.seen), default=0)
    for name, count in sorted(observer.seen.items()):
        if count:
            yield f"  {name:<{width}}  {count:,}"
    missing = not_seen(observer)
    if missing:
        yield "Not seen, so not tested:"
        yield from (f"  {line}" for line in missing)
    listed: set[int] = set()
    for rule, count in observer.num_breaches.items():
        yield f"BROKEN {rule}, {count:,} times: {RULES[rule].text} ({RULES[rule].source})"
        for breach in observer.breaches:
            if breach.rule == rule:
                yield f"  {breach.facts}" + f" … {breach.num_times:,} times" * (breach.num_times > 1)
                for number in breach.messages[-_CONTEXT:]:
                    line = "see above" if number in listed else observer.messages.get(number, "no longer kept")
                    yield f"    message {number}: {line}"
                    listed.add(number)
    num_steps = observer.seen["Steps"]
    if observer.num_breaches:
        yield f"{len(observer.num_breaches)} of {len(RULES)} rules are broken."
    elif num_steps:
        yield f"No rule of {len(RULES)} is broken in {num_steps:,} Steps."
    else:
        yield "Nothing was tested: the holder sent no Step."
