"""What becomes of the fields that clients send: honoured, accepted, left out or refused, and told in the README."""

from __future__ import annotations

from typing import Any, get_type_hints

import anthropic.types as anthropic_types
import anthropic.types.beta as anthropic_beta
import field_matrix
import openai.types as openai_types
import openai.types.chat as openai_chat
import openai.types.responses as openai_responses
import pytest
from field_matrix import ENDPOINTS, fate, known_names

SDK_TYPES: dict[str, list[Any]] = {
    "chat/completions": [openai_chat.completion_create_params.CompletionCreateParamsBase],
    "completions": [openai_types.completion_create_params.CompletionCreateParamsBase],
    "responses": [openai_responses.response_create_params.ResponseCreateParamsBase],
    "messages": [
        anthropic_types.message_create_params.MessageCreateParamsBase,
        anthropic_beta.message_create_params.MessageCreateParamsBase,
    ],
}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_field_that_a_client_sends_has_its_fate(endpoint: str) -> None:
    names = set(known_names(endpoint)).union(*map(get_type_hints, SDK_TYPES[endpoint])) | {"a_field_of_tomorrow"}
    fates = {name: fate(endpoint, name) for name in names}
    assert set(fates.values()) == {"honoured", "accepted", "left out", "refused"}
    assert fates["a_field_of_tomorrow"] == "left out"
    assert fates["model"] == "honoured"


def test_the_table_in_the_readme_says_so() -> None:
    text = field_matrix.README.read_text()
    _, _, rest = text.partition(field_matrix.BEGIN)
    told, end, _ = rest.partition(field_matrix.END)
    assert end
    assert told == field_matrix.table(), "write it again: PYTHONPATH=. python tests/shared/gateway/field_matrix.py"
