"""Content of the measured page: a model that writes random letters, a long conversation, and a large tree."""

from __future__ import annotations

import json
import random
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from bench.faults.typewriter import CHARACTERS, EOS, save_typewriter

__all__ = ["TOP_K", "large_tree", "long_conversation", "save_model"]

REPLY_TOKENS = 40
ROOT = "/v1/radixkv/conversations"
TOP_K = 16
WORDS = ("a", "branch", "of", "the", "tree", "holds", "what", "was", "said", "before", "it")


def save_model(folder: Path) -> str:
    """A model whose 16 likeliest tokens are letters, digits, blanks and new lines: no mark-up, and no end."""
    from safetensors.torch import load_file, save_file

    save_typewriter(folder)
    path = folder / "model.safetensors"
    weights = load_file(path)
    for token_id, character in enumerate(CHARACTERS):
        if not (character.isalnum() or character.isspace()):
            weights["lm_head.weight"][token_id] = 0.0  # as likely as the middle of the others
    weights["lm_head.weight"][EOS] = 0.0
    save_file(weights, path, metadata={"format": "pt"})
    return str(folder)


def call(site: str, path: str, body: Any, method: str = "POST") -> Any:
    request = urllib.request.Request(
        f"{site}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def long_conversation(site: str, number: int) -> str:
    """Make one of `number` messages. Returns its id."""
    source = random.Random(0)
    words = [source.choices(WORDS, k=60) for _ in range(number)]
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "text": " ".join(each)} for place, each in enumerate(words)]
    return str(call(site, ROOT, {"title": "Long", "messages": messages})["id"])


def large_tree(site: str, number: int) -> str:
    """Make one of `number` messages in many branches. Returns its id."""
    source = random.Random(0)
    messages: list[dict[str, Any]] = []
    ends: dict[str, list[str]] = {"user": [], "assistant": []}
    for place in range(number):
        role = "user" if place == 0 or (ends["assistant"] and source.random() < 0.5) else "assistant"
        above = ends["assistant" if role == "user" else "user"]
        parent = None if place == 0 else (above[-1] if source.random() < 0.6 else source.choice(above[-200:]))
        message = f"msg_{uuid.UUID(int=source.getrandbits(128)).hex}"
        ends[role].append(message)
        text = f"Message {place} of a tree, with a few words."
        messages.append({"id": message, "parent": parent, "role": role, "text": text, "created": 1.7e9 + place})
    document = {"format": "radixkv-conversation", "version": 1, "title": "Tree", "messages": messages}
    told = call(site, f"{ROOT}/import", document)
    (conversation,) = told["conversations"]
    if conversation["num_messages"] != number:
        raise AssertionError(f"{conversation['num_messages']} messages in place of {number}")
    settings = {"max_tokens": REPLY_TOKENS, "top_k": TOP_K}
    call(site, f"{ROOT}/{conversation['id']}", {"settings": settings}, "PATCH")
    return str(conversation["id"])
