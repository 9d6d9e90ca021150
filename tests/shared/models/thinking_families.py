"""Tokenizers of families of models that think: the default model's, with a family's marks and a template in its ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

__all__ = ["GPT_OSS", "KEEPER", "QWEN3", "R1", "SMOLLM3", "Family", "save_family"]

_FIRST_RENAMED = 3
"""Ids from here on are special tokens of the default model that no template writes."""


class Family(NamedTuple):
    """marks: tokens that it has, and whether they are special ones. end: with which its model ends a reply."""

    name: str
    template: str
    marks: tuple[tuple[str, bool], ...]
    end: str = "<|im_end|>"

    def written(self, thinking: str, answer: str) -> str:
        """A reply as the model writes it, behind a prompt that leaves it to it whether it thinks."""
        if self.end != "<|im_end|>":
            thought = f"<|channel|>analysis<|message|>{thinking}<|end|><|start|>assistant" if thinking else ""
            return f"{thought}<|channel|>final<|message|>{answer}"
        opens, closes = (name for name, _ in self.marks)
        if self.name == "r1":
            return f"{thinking}\n{closes}\n\n{answer}"
        return f"{opens}\n{thinking}\n{closes}\n\n{answer}" if thinking else answer


_THINK = (("<think>", False), ("</think>", False))
_TOOLS = "{% if tools %}{{ '<|im_start|>system\nTools: ' + tools | tojson + '<|im_end|>\n' }}{% endif %}"
_OTHERS = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
_CALLS = (
    "{% for call in m.tool_calls or [] %}{{ '\n<tool_call>\n' + {'name': call.function.name, "
    "'arguments': call.function.arguments} | tojson + '\n</tool_call>' }}{% endfor %}"
)

QWEN3 = Family(
    "qwen3",
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}"
    + _TOOLS
    + "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
    "{% if loop.index0 > ns.last and m.reasoning_content %}"
    "{{ '<think>\n' + m.reasoning_content.strip('\n') + '\n</think>\n\n' + m.content.lstrip('\n') }}"
    "{% else %}{{ m.content }}{% endif %}"
    + _CALLS
    + "{{ '<|im_end|>\n' }}{% else %}"
    + _OTHERS
    + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}",
    _THINK,
)

R1 = Family(
    "r1",
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ '<|im_start|>assistant\n' + m.content.split('</think>')[-1] + '<|im_end|>\n' }}{% else %}"
    + _OTHERS
    + "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}",
    _THINK,
)

SMOLLM3 = Family(
    "smollm3",
    "{% if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
    "{{ ('' if enable_thinking else '<think>\n\n</think>\n') + m.content.lstrip('\n') + '<|im_end|>\n' }}{% else %}"
    + _OTHERS
    + "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{{ '' if enable_thinking else '<think>\n\n</think>\n' }}{% endif %}",
    _THINK,
)

KEEPER = Family(
    "keeper",
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
    "{% if m.reasoning_content %}{{ '[THINK]\n' + m.reasoning_content + '\n[/THINK]\n\n' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% else %}" + _OTHERS + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    (("[THINK]", True), ("[/THINK]", True)),
)

GPT_OSS = Family(
    "gpt-oss",
    "{{ '<|start|>system<|message|>Reasoning: ' + (reasoning_effort or 'medium') + '<|end|>' }}"
    "{% if tools %}{{ '<|start|>developer<|message|>' + tools | tojson + '<|end|>' }}{% endif %}"
    "{% set ns = namespace(last=-1, name='') %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}"
    "{% if m.thinking and m.content %}{{ raise_exception('both') }}{% endif %}"
    "{% if m.thinking and loop.index0 > ns.last %}"
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}"
    "{% set call = m.tool_calls[0].function %}{% set ns.name = call.name %}"
    "{{ '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}"
    "{{ call.arguments | tojson + '<|call|>' }}"
    "{% elif m.role == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}"
    "{% elif m.role == 'tool' %}{% if not ns.name %}{{ raise_exception('no call') }}{% endif %}"
    "{{ '<|start|>functions.' + ns.name + ' to=assistant<|channel|>commentary<|message|>' + m.content + '<|end|>' }}"
    "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}",
    tuple((f"<|{name}|>", True) for name in ("start", "end", "message", "channel", "constrain", "return", "call")),
    end="<|return|>",
)


def save_family(default_model: str, folder: Path, family: Family) -> str:
    """The default model's tokenizer with the family's marks among its special tokens, and the family's template."""
    state = json.loads((Path(default_model) / "tokenizer.json").read_text())
    told = json.loads((Path(default_model) / "tokenizer_config.json").read_text())
    vocab = state["model"]["vocab"]
    for token_id, (name, is_special) in enumerate(family.marks, _FIRST_RENAMED):
        added = next(token for token in state["added_tokens"] if token["id"] == token_id)
        vocab[name] = vocab.pop(added["content"])
        added |= {"content": name, "special": is_special}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(state))
    (folder / "tokenizer_config.json").write_text(json.dumps({**told, "chat_template": family.template}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return str(folder)
