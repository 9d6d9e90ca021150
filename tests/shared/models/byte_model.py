"""The byte model of the benches, for tests."""

from __future__ import annotations

from bench.common.byte_model import EOS, VOCAB_SIZE, save_byte_model

__all__ = ["EOS", "VOCAB_SIZE", "save_byte_model"]
