"""What may be drawn before an answer that is bound by a grammar."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from radixkv.worker.generations.after_thinking import AfterThinking


def test_a_thought_may_be_anything_but_the_end_of_the_reply() -> None:
    nobody = cast(Any, None)  # neither the grammar nor the text is asked before the thought ends
    thinking = AfterThinking(nobody, nobody, "</think>", vocab_size=40, stop_token_ids=(2, 39, 41))
    bits = np.unpackbits(np.frombuffer(thinking.allowed(), np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == [token_id for token_id in range(40) if token_id not in (2, 39)]
    assert not thinking.is_over
