"""Tokenizers of one token per byte, and chat templates of the families that instruct models come in.

They do to earlier turns what the families do, which is what can go wrong behind a kept history: a system message that appears
where there is none, or moves into a user's turn, trimmed contents, reasoning that is taken out again, roles by other names or
by none, tools in odd places.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from radixkv.generation.request import ModelInfo, Prompt
from radixkv.worker.engine.prompts import PromptReader
from radixkv.worker.generations.text import ChatText

__all__ = ["FAMILIES", "Family", "LocalReader", "chat_text"]


class Family(NamedTuple):
    """A template, its special tokens, and the one with which its model ends a reply."""

    name: str
    template: str
    special: tuple[str, ...]
    end: str


CHATML = Family(
    "chatml",
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nYou are kind.<|im_end|>\n{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    ("<|im_start|>", "<|im_end|>"),
    "<|im_end|>",
)

LLAMA3 = Family(
    "llama3",
    "{{ '<|begin_of_text|>' }}{% set ns = namespace(i=0) %}{% if messages[0].role == 'system' %}"
    "{% set about = messages[0].content | trim %}{% set ns.i = 1 %}{% else %}{% set about = '' %}{% endif %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\n\nCutting off: 2023\n\n' + about + '<|eot_id|>' }}"
    "{% for m in messages[ns.i:] %}"
    "{% if m.role == 'user' and loop.first and tools %}"
    "{{ '<|start_header_id|>user<|end_header_id|>\n\nCall one of: ' + tools | tojson }}"
    "{{ '\n\n' + m.content | trim + '<|eot_id|>' }}"
    "{% elif m.tool_calls %}{% set call = m.tool_calls[0].function %}"
    '{{ \'<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "\' + call.name + \'", "parameters": \' }}'
    "{{ call.arguments | tojson + '}<|eot_id|>' }}"
    "{% elif m.role == 'tool' %}{{ '<|start_header_id|>ipython<|end_header_id|>\n\n' + m.content + '<|eot_id|>' }}"
    "{% else %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "<|eot_id|>",
)

GEMMA = Family(
    "gemma",
    "{{ '<bos>' }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    ("<bos>", "<start_of_turn>", "<end_of_turn>"),
    "<end_of_turn>",
)

QWEN3 = Family(
    "qwen3",
    "{% if tools %}{{ '<|im_start|>system\n' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}"
    "{{ 'Tools: ' + tools | tojson + '<|im_end|>\n' }}"
    "{% elif messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}"
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}{% for m in messages %}"
    "{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% elif m.role == 'assistant' %}{% set said = m.content.split('</think>')[-1].lstrip('\n') %}"
    "{{ '<|im_start|>assistant\n' }}{% if loop.index0 > ns.last %}"
    "{% set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\n') if '</think>' in m.content else '' %}"
    "{{ '<think>\n' + thought + '\n</think>\n\n' }}{% endif %}{{ said }}"
    "{% for call in m.tool_calls or [] %}{{ '\n' if not loop.first or said else '' }}"
    '{{ \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' + call.function.arguments | tojson }}'
    "{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif m.role == 'tool' %}"
    "{{ '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' else '' }}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{{ '<|im_end|>\n' if loop.last or messages[loop.index0 + 1].role != 'tool' else '' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    ("<|im_start|>", "<|im_end|>"),
    "<|im_end|>",
)

MISTRAL = Family(
    "mistral",
    "{{ '<s>' }}{% set ns = namespace(i=0, about='') %}{% if messages[0].role == 'system' %}"
    "{% set ns.i = 1 %}{% set ns.about = messages[0].content + '\n\n' %}{% endif %}{% for m in messages[ns.i:] %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}{{ '[INST]' + (ns.about if loop.first else '') + m.content + '[/INST]' }}"
    "{% else %}{{ m.content + '</s>' }}{% endif %}{% endfor %}",
    ("<s>", "</s>", "[INST]", "[/INST]"),
    "</s>",
)

PHI3 = Family(
    "phi3",
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{{ '<|assistant|>\n' if add_generation_prompt else '<|endoftext|>' }}",
    ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"),
    "<|end|>",
)

DEEPSEEK = Family(
    "deepseek",
    "{{ '<begin>' }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
    "{% elif m.role == 'user' %}{{ '<User>' + m.content }}"
    "{% else %}{{ '<Assistant>' + m.content.split('</think>')[-1] + '<end>' }}{% endif %}{% endfor %}"
    "{{ '<Assistant>' if add_generation_prompt and messages[-1].role == 'user' else '' }}",
    ("<begin>", "<end>", "<User>", "<Assistant>"),
    "<end>",
)

FAMILIES = (CHATML, LLAMA3, GEMMA, QWEN3, MISTRAL, PHI3, DEEPSEEK)

_MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("o", "r"), ("Ġ", "w"))
"""So that some texts have several tokenisations, of which a tokenizer gives one."""


def chat_text(folder: Path, family: Family) -> ChatText:
    """The family's template over a tokenizer of bytes and a few merges."""
    vocab = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for left, right in _MERGES:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(_MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=family.end,
        additional_special_tokens=list(family.special),
        chat_template=family.template,
    )
    fast.save_pretrained(folder)
    return ChatText(str(folder))


class LocalReader:
    """What transcripts ask of a worker, from a tokenizer in this process, and the tokens of replies."""

    def __init__(self, text: ChatText, family: Family, name: str = "tiny") -> None:
        self.text = text
        self.end = text.encode(family.end, special=False)
        self._name = name
        self._prompts = PromptReader(
            text, vocab_size=400, eos_token_ids=frozenset(self.end), max_length=8192, num_blocks=512, block_size=16
        )
        self.num_decoded = 0

    async def model(self) -> ModelInfo:
        return ModelInfo(self._name, 8192, 400, 16, tuple(self.end), True)

    async def tokenize(self, prompt: Prompt, history: bytes = b"", namespace: str | None = None) -> bytes:  # type: ignore[override]
        return self._prompts.read(prompt, history, namespace or "default")

    async def detokenize(self, token_ids: bytes) -> str:  # type: ignore[override]
        self.num_decoded += 1
        return self._prompts.decode(token_ids)

    async def spell(self, token_ids: Collection[int]) -> dict[int, bytes]:
        ids = sorted(token_ids)
        return dict(zip(ids, self._prompts.spell(ids), strict=True))

    def spelled(self, text: str) -> list[int]:
        """Ids of a text letter by letter, as a model may sample it and no tokenizer writes it; and the end of the reply."""
        ids = [token_id for char in text for token_id in self.text.encode(char, special=False)]
        return [*ids, *self.end]

    def shown(self, token_ids: Sequence[int]) -> str:
        """The text that the model reads, special tokens by name."""
        return self.text.decode(token_ids, skip_special_tokens=False)
