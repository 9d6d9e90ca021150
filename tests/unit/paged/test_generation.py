"""`radixkv.paged.generate`: the tokens of the model alone, whatever was cached, forked, evicted or interrupted."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import cache as once
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from small_tokenizers import CHATML, byte_level
from tiny_models import CONFIGS, VOCAB_SIZE, random_model, reference_replies

from radixkv import InvalidArgumentError, OutOfBlocksError, PrefixCache
from radixkv.paged import PagedKV, generate, generate_batch
from radixkv.paged.kv import CACHE_ARGUMENT

BLOCK_SIZE = 4
NUM_NEW = 9
WHATEVER_ENDS = {"eos_token_id": None, "pad_token_id": 0}


def _heads_of_two_sizes_and_shared_layers() -> Any:
    config = CONFIGS["gemma3"]().to_dict()
    sizes = {name: config[name] for name in ("hidden_size", "intermediate_size", "head_dim", "vocab_size")}
    sizes |= {name: config[name] for name in ("num_attention_heads", "num_key_value_heads")}
    layers = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8}
    per_layer = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB_SIZE}
    return tf.Gemma4TextConfig(**sizes, **layers, **per_layer, global_head_dim=16, num_kv_shared_layers=2)


FAMILIES = {
    **{name: CONFIGS[name] for name in ("llama", "qwen3", "gemma3", "gpt2", "mixtral", "gpt_oss", "deepseek_v3")},
    "gemma4": _heads_of_two_sizes_and_shared_layers,
}


@once
def model_of(family: str) -> Any:
    return random_model(FAMILIES[family]())


class Setup:
    """A model, a pool and a cache of one size."""

    def __init__(self, family: str = "llama", num_blocks: int = 64) -> None:
        self.model = model_of(family)
        self.cache = PrefixCache(num_blocks, BLOCK_SIZE)
        self.kv = PagedKV(self.model, num_blocks, BLOCK_SIZE)

    def continued(self, prompt: Any, tokenizer: Any = None, **options: Any) -> Any:
        options = {"max_new_tokens": NUM_NEW, "temperature": 0, **WHATEVER_ENDS, **options}
        return generate(self.model, tokenizer, prompt, self.cache, self.kv, **options)

    def is_clean(self) -> bool:
        self.cache.check()
        stats = self.cache.stats()
        return not stats.num_sequences and not stats.num_private_blocks and not stats.num_promised_blocks


def random_ids(num_tokens: int, seed: int = 0) -> list[int]:
    return torch.randint(3, VOCAB_SIZE, (num_tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


def alone(model: Any, prompt: Sequence[int], **options: Any) -> list[list[int]]:
    return reference_replies(model, prompt, NUM_NEW, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_cold_warm_edited_and_forked_replies_are_those_of_the_model_alone(family: str) -> None:
    setup = Setup(family)
    prompt = random_ids(21)
    cold = setup.continued(prompt)
    assert cold.num_cached_tokens == 0
    assert cold.token_ids == alone(setup.model, prompt)
    warm = setup.continued(prompt)
    assert warm.num_cached_tokens == 20  # the last one is run for its logits
    assert warm.token_ids == cold.token_ids
    edited = prompt[:10] + random_ids(8, seed=1)
    drafts = setup.continued(edited, n=3)
    assert 10 <= drafts.num_cached_tokens <= 11
    assert drafts.token_ids == 3 * alone(setup.model, edited)
    turn = prompt + cold.token_ids[0] + random_ids(5, seed=2)
    second = setup.continued(turn)
    assert second.num_cached_tokens >= 21 + NUM_NEW - 1
    assert second.token_ids == alone(setup.model, turn)
    assert setup.is_clean()


def test_logits_are_to_the_bit_those_of_a_dynamic_cache_filled_in_the_same_chunks() -> None:
    for family in ("llama", "gemma3", "gpt2"):
        setup, prompt = Setup(family), torch.tensor([random_ids(30)])
        setup.continued(prompt[0, :17].tolist(), max_new_tokens=1)
        found = setup.cache.acquire(prompt[0].tolist())
        with torch.no_grad():
            past = tf.DynamicCache()
            setup.model(prompt[:, :17], **{CACHE_ARGUMENT: past})
            expected = setup.model(prompt[:, 17:], **{CACHE_ARGUMENT: past}).logits
            gathered = setup.kv.gather(found.block_table, 17)
            logits = setup.model(prompt[:, 17:], **{CACHE_ARGUMENT: gathered}).logits
        assert found.num_cached_tokens == 17
        assert torch.equal(logits, expected)


def test_seeded_drafts_are_those_of_the_model_alone_and_leave_the_random_state() -> None:
    setup, prompt = Setup(), random_ids(13)
    sampled = {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "top_k": 20}
    torch.manual_seed(7)
    expected = alone(setup.model, prompt, num_return_sequences=4, **sampled)
    before = torch.get_rng_state()
    for _ in ("cold", "warm"):
        drafts = setup.continued(prompt, temperature=0.8, top_p=0.9, top_k=20, seed=7, n=4)
        assert drafts.token_ids == expected
    assert len({tuple(draft) for draft in drafts.token_ids}) > 1
    assert torch.equal(torch.get_rng_state(), before)
    assert setup.is_clean()


def test_drafts_end_each_at_its_own_token_and_what_they_computed_is_cached() -> None:
    setup, prompt = Setup(), random_ids(13)
    ends = list(range(0, VOCAB_SIZE, 9))
    drafts = setup.continued(
        prompt, temperature=1.0, seed=3, n=6, max_new_tokens=30, eos_token_id=ends, pad_token_id=VOCAB_SIZE - 1
    )
    lengths = {len(draft) for draft in drafts.token_ids}
    assert len(lengths) > 1
    for draft in drafts.token_ids:
        assert not set(draft[:-1]) & set(ends)
        assert setup.cache.match(prompt + draft).num_tokens == len(prompt + draft) - 1 + (len(draft) < max(lengths))
    assert setup.is_clean()


def test_one_token_of_prompt_and_of_reply_are_enough() -> None:
    setup = Setup()
    for n in (1, 2):
        assert setup.continued([5], n=n, max_new_tokens=1).token_ids == n * [alone(setup.model, [5])[0][:1]]
    assert setup.is_clean()


def test_a_batch_is_answered_in_its_order_and_shares_its_prefix() -> None:
    setup, shots = Setup(), random_ids(16)
    prompts = [shots + random_ids(5, seed=seed) for seed in range(4)]
    replies = generate_batch(
        setup.model, None, prompts, setup.cache, setup.kv, max_new_tokens=NUM_NEW, temperature=0, **WHATEVER_ENDS
    )
    assert [reply.token_ids for reply in replies] == [alone(setup.model, prompt) for prompt in prompts]
    assert sorted(reply.num_cached_tokens for reply in replies)[1] >= 16
    assert setup.is_clean()


def test_replies_are_right_in_a_pool_that_evicts_at_every_prompt() -> None:
    setup, base = Setup(num_blocks=12), random_ids(12)
    for seed in range(12):
        prompt = base[: 3 * (seed % 5)] + random_ids(9, seed=seed)
        assert setup.continued(prompt, n=1 + seed % 2).token_ids[0] == alone(setup.model, prompt)[0]
    assert setup.cache.stats().num_evicted_blocks > 0
    assert setup.is_clean()


def test_a_prompt_that_can_never_fit_is_named_and_one_that_does_not_fit_now_changes_nothing() -> None:
    setup = Setup(num_blocks=8)
    with pytest.raises(InvalidArgumentError, match=r"is '30 \+ 9 tokens'; it must be at most 33 in all"):
        setup.continued(random_ids(30))
    other = setup.cache.acquire(random_ids(16, seed=1))
    with pytest.raises(OutOfBlocksError):
        setup.continued(random_ids(16))
    with pytest.raises(OutOfBlocksError):
        setup.continued(random_ids(4), n=3)
    setup.cache.release(other.seq_id)
    assert setup.is_clean()
    assert setup.continued(random_ids(16)).token_ids == alone(setup.model, random_ids(16))


@pytest.mark.parametrize("n", [1, 3])
def test_an_error_in_the_middle_leaves_the_published_blocks_and_nothing_else(n: int) -> None:
    setup, prompt = Setup(), random_ids(13)

    def fails(input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        if input_ids.shape[1] == len(prompt) + 7:
            raise RuntimeError("out of memory")
        return torch.zeros(len(input_ids), dtype=torch.bool)

    with pytest.raises(RuntimeError, match="out of memory"):
        setup.continued(prompt, n=n, stopping_criteria=[fails])
    assert setup.is_clean()
    history = prompt + alone(setup.model, prompt)[0]
    assert len(prompt) + 4 <= setup.cache.match(history).num_tokens <= len(prompt) + 6
    assert setup.continued(prompt).token_ids == alone(setup.model, prompt)


def test_a_sequence_whose_block_ops_failed_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    setup, prompt = Setup(num_blocks=6), random_ids(13)
    setup.continued(prompt)  # all of it is evicted by the next one
    edited = prompt[:3] + random_ids(21, seed=1)

    def fails(_ops: Any) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(setup.kv, "carry_out", fails)
        with pytest.raises(RuntimeError, match="out of memory"):
            setup.continued(edited, max_new_tokens=1)
    assert setup.is_clean()
    assert setup.cache.match(edited).num_tokens == 0


def test_an_interrupt_ends_the_reply_at_its_next_token_with_all_that_is_computed_cached() -> None:
    setup, prompt = Setup(), random_ids(13)

    def interrupts(input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        if input_ids.shape[1] == len(prompt) + 3:
            signal.raise_signal(signal.SIGINT)
        return torch.zeros(len(input_ids), dtype=torch.bool)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        setup.continued(prompt, stopping_criteria=[interrupts])
    assert signal.getsignal(signal.SIGINT) is handler
    assert setup.cache.match(prompt + alone(setup.model, prompt)[0]).num_tokens == len(prompt) + 2
    assert setup.is_clean()


def test_a_second_interrupt_ends_it_at_once() -> None:
    setup, prompt = Setup(), random_ids(13)

    def interrupts_twice(_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the second one raises")

    with pytest.raises(KeyboardInterrupt):
        setup.continued(prompt, stopping_criteria=[interrupts_twice])
    assert setup.is_clean()


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"n": 0}, "n"),
        ({"temperature": -1.0}, "temperature"),
        ({"num_beams": 2}, "num_beams"),
        ({"past_key_values": None}, "past_key_values"),
        ({"prompt": []}, "prompt"),
    ],
)
def test_a_bad_argument_is_named_and_changes_nothing(options: dict[str, Any], argument: str) -> None:
    setup = Setup()
    with pytest.raises(InvalidArgumentError) as raised:
        setup.continued(**{"prompt": random_ids(5), **options})
    assert raised.value.argument == argument
    assert setup.cache.stats().num_queries == 0


def test_keys_whose_rotation_depends_on_the_length_are_not_reused_past_that_length() -> None:
    config = CONFIGS["llama"]()
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    config.max_position_embeddings = 32
    model = random_model(config)
    cache, kv = PrefixCache(64, BLOCK_SIZE), PagedKV(model, 64, BLOCK_SIZE)
    assert generate(model, None, random_ids(20), cache, kv, max_new_tokens=12).num_cached_tokens == 0
    with pytest.raises(InvalidArgumentError, match=r"20 \+ 13 tokens'; it must be at most 32 in all"):
        generate(model, None, random_ids(20), cache, kv, max_new_tokens=13)


def test_a_model_whose_generation_config_names_a_cache_is_served() -> None:
    setup, prompt = Setup("qwen3"), random_ids(13)
    expected = alone(setup.model, prompt)
    setup.model.generation_config.cache_implementation = "static"
    try:
        assert setup.continued(prompt).token_ids == expected
    finally:
        setup.model.generation_config.cache_implementation = None


def test_namespaces_share_nothing() -> None:
    setup, prompt = Setup(), random_ids(13)
    setup.continued(prompt, namespace="a")
    assert setup.continued(prompt, namespace="b").num_cached_tokens == 0
    assert setup.continued(prompt, namespace="a").num_cached_tokens == 12


def test_text_and_messages_are_prompts_and_a_reply_is_text(tmp_path: Path) -> None:
    byte_level(tmp_path, CHATML)
    tokenizer = tf.AutoTokenizer.from_pretrained(tmp_path)
    config = CONFIGS["llama"]()
    config.vocab_size = len(tokenizer)
    model = random_model(config)
    cache, kv = PrefixCache(64, BLOCK_SIZE), PagedKV(model, 64, BLOCK_SIZE)
    told = generate(model, tokenizer, "Once upon", cache, kv, max_new_tokens=6, temperature=0)
    assert told.prompt_token_ids == tokenizer("Once upon")["input_ids"]
    assert told.text == tokenizer.decode(told.token_ids[0], skip_special_tokens=True)
    chat = [{"role": "user", "content": "Hi"}]
    first = generate(model, tokenizer, chat, cache, kv, max_new_tokens=6, temperature=0)
    chat += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "Again"}]
    second = generate(model, tokenizer, chat, cache, kv, max_new_tokens=6, temperature=0)
    assert second.num_cached_tokens >= len(first.prompt_token_ids)
    stop = next(letter for letter in told.text if letter.isascii() and letter.isprintable())
    stopped = generate(
        model, tokenizer, "Once upon", cache, kv, max_new_tokens=6, temperature=0, n=2, stop_strings=[stop]
    )
    assert stopped.texts == 2 * [told.text[: told.text.index(stop) + 1]]
