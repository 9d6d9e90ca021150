"""Plays a workload against one system: a thread per user, and one per call of a wave with several."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from bench.serving.plan import Lane, Outcome, ReadyCall, Workload

__all__ = ["Ask", "play"]

Ask = Callable[[ReadyCall], Outcome]
"""Returns a call's outcome once all of its replies are complete. Thread-safe."""


def play(workload: Workload, ask: Ask) -> list[Outcome]:
    """Play all calls of the workload. Returns outcomes in the order of lanes and calls.

    Raises:
        Exception: the first one raised by `ask`; running lanes are completed before.
        AssertionError: a reply has another length than requested.
    """
    with ThreadPoolExecutor(workload.max_at_once, thread_name_prefix="user") as users:
        lanes = [users.submit(_play_lane, lane, ask) for lane in workload.lanes]
        return [outcome for lane in lanes for outcome in lane.result()]


def _play_lane(lane: Lane, ask: Ask) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for wave in lane:
        replies = [outcome.replies for outcome in outcomes]
        ready = [ReadyCall.of(call, replies) for call in wave]
        outcomes += _together(ready, ask) if len(ready) > 1 else [ask(ready[0])]
        for call, outcome in zip(ready, outcomes[-len(ready) :], strict=True):
            lengths = [len(reply) for reply in outcome.replies]
            if lengths != [call.num_tokens] * call.n:
                raise AssertionError(f"replies of {lengths} tokens in place of {call.n} of {call.num_tokens}")
    return outcomes


def _together(ready: list[ReadyCall], ask: Ask) -> list[Outcome]:
    outcomes: dict[int, Outcome] = {}
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            outcomes[index] = ask(ready[index])
        except BaseException as error:  # raised again on the lane's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(ready))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [outcomes[index] for index in range(len(ready))]
