"""A GGUF file that a user names is served as the model that it was written from, or refused in one line."""

from __future__ import annotations

import random
import shutil
import signal
import struct
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_gguf import ARCHITECTURES, TOKENS, Kind, reference_tokenizer, round_weights, tiny_model, write_gguf
from tiny_models import reference_logits
from tokenizers import Regex, pre_tokenizers

from radixkv.core.tokens import unpack_tokens
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.generation.stream import Delta, Started
from radixkv.kernels.runtime.native_build import native_library
from radixkv.worker.errors import ModelError
from radixkv.worker.generations.text import ChatText
from radixkv.worker.loading import model_store
from radixkv.worker.loading.default_model import resolve_model
from radixkv.worker.model import model as worker_model
from radixkv.worker.model.model import ForwardRow, ModelRunner
from radixkv.worker.run import Worker, WorkerConfig

TOLERANCE = 1e-4
SAMPLE = "In 2024 the 12 cats\n\nate 1234 things; isn't that \u00bd\u4f60\u597d?  Yes."
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _resolve(path: Path, cache: Path) -> str:
    return resolve_model(str(path), cache=cache, progress=False)


def _logits(folder: str, token_ids: list[int]) -> torch.Tensor:
    runner = ModelRunner(folder, num_blocks=8, block_size=8, dtype="float32", device="cpu")
    rows = [ForwardRow(token_ids[:at], 0, array("i", [6, 1, 4, 3, 2, 5]), 0, True) for at in (1, len(token_ids))]
    return torch.cat([runner.forward([row]) for row in rows])


def _assert_same(folder: str, model: Any) -> None:
    token_ids = random.Random(1).choices(range(3, len(TOKENS)), k=40)
    expected = reference_logits(model, token_ids)[[0, -1]]
    torch.testing.assert_close(_logits(folder, token_ids), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_a_file_gives_the_logits_of_the_model_that_it_was_written_from(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    write_gguf(model, family, tmp_path / "tiny.gguf")
    _assert_same(_resolve(tmp_path / "tiny.gguf", tmp_path / "cache"), model)


def test_layers_see_no_more_of_a_history_than_the_file_says(tmp_path: Path) -> None:
    model = tiny_model("phi3", sliding_window=8)
    write_gguf(model, "phi3", tmp_path / "tiny.gguf")
    _assert_same(_resolve(tmp_path / "tiny.gguf", tmp_path / "cache"), model)


def test_quantised_weights_are_those_that_the_file_stands_for(tmp_path: Path) -> None:
    model = tiny_model("llama")
    write_gguf(model, "llama", tmp_path / "exact.gguf")
    kinds = {"kinds": lambda _: Kind.Q8_0}
    round_weights(model, **kinds)
    write_gguf(model, "llama", tmp_path / "tiny.gguf", **kinds)
    assert (tmp_path / "tiny.gguf").stat().st_size < (tmp_path / "exact.gguf").stat().st_size
    _assert_same(_resolve(tmp_path / "tiny.gguf", tmp_path / "cache"), model)


WIDE = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "head_dim": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.skipif(native_library() is None, reason="there is no C++ compiler here")
@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize(
    ("kinds", "most_apart"),
    [
        (lambda _: Kind.Q4_0, 1e-3),
        (lambda _: Kind.Q4_1, 1e-3),
        (lambda name: Kind.Q8_0 if any(part in name for part in ("v_proj", "embed", "head")) else Kind.Q4_0, 3e-2),
    ],
    ids=["Q4_0", "Q4_1", "some Q8_0"],
)
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_weights_of_four_bits_are_multiplied_as_they_are(
    family: str,
    kinds: Callable[[str], Kind],
    most_apart: float,
    is_tied: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_model, "wants_rounding", lambda *_: True)
    model = tiny_model(family, tie_word_embeddings=is_tied, **WIDE)
    round_weights(model, kinds)
    write_gguf(model, family, tmp_path / "tiny.gguf", kinds=kinds)
    folder = _resolve(tmp_path / "tiny.gguf", tmp_path / "cache")
    token_ids = random.Random(1).choices(range(3, len(TOKENS)), k=40)
    expected = reference_logits(model, token_ids)[-1]
    found, sizes = {}, {}
    for quantization in ("auto", "int8"):
        runner = ModelRunner(
            folder, num_blocks=8, block_size=8, dtype="float32", device="cpu", quantization=quantization
        )
        assert runner.is_native
        assert runner.quantization == {"auto": "int4"}.get(quantization, quantization)
        row = ForwardRow(token_ids, 0, array("i", [6, 1, 4, 3, 2, 5]), 0, True)
        found[quantization], sizes[quantization] = runner.forward([row])[0], runner.weight_bytes
    assert (found["auto"] - expected).norm() < most_apart * expected.norm()
    assert sizes["auto"] < 0.8 * sizes["int8"]


def test_a_file_that_was_changed_or_taken_away_behind_its_index_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(tiny_model("llama"), "llama", path)
    folder = _resolve(path, tmp_path / "cache")
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(ModelError, match=r"tiny\.gguf has .* bytes in place of .*: it is another file by now"):
        _logits(folder, [3, 4])
    path.unlink()
    with pytest.raises(ModelError, match=r"the weights in .*tiny\.gguf cannot be read"):
        _logits(folder, [3, 4])


@pytest.mark.parametrize(
    ("split", "pre_tokenizer"),
    [
        ("gpt-2", pre_tokenizers.ByteLevel(add_prefix_space=False)),
        (None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
        (
            "smollm",
            pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            ),
        ),
        (
            "llama-bpe",
            pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            ),
        ),
    ],
)
def test_text_is_split_as_the_file_says(split: str | None, pre_tokenizer: Any, tmp_path: Path) -> None:
    write_gguf(tiny_model("llama"), "llama", tmp_path / "tiny.gguf", split=split)
    text = ChatText(_resolve(tmp_path / "tiny.gguf", tmp_path / "cache"))
    assert text.encode(SAMPLE, special=False) == reference_tokenizer(pre_tokenizer).encode(SAMPLE).ids
    assert text.decode(text.encode(SAMPLE)) == SAMPLE
    assert text.prompt_ids([{"role": "user", "content": "the"}]) == [1, TOKENS.index("the"), 2]


def test_a_file_is_converted_once_and_anew_when_it_has_changed(tmp_path: Path) -> None:
    path, cache = tmp_path / "tiny.gguf", tmp_path / "cache"
    write_gguf(tiny_model("llama"), "llama", path)
    folder = _resolve(path, cache)
    made = (Path(folder) / "config.json").stat()
    assert _resolve(path, cache) == folder
    again = (Path(folder) / "config.json").stat()
    assert (again.st_ino, again.st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
    write_gguf(tiny_model("llama"), "llama", path, facts={"ARCH.rope.scaling.type": "none"})
    assert _resolve(path, cache) != folder
    assert len([each for each in (cache / "models").iterdir() if each.is_dir()]) == 2


KILLED = """
import os, signal, sys
from pathlib import Path
from radixkv.worker.loading.default_model import resolve_model
from radixkv.worker.loading.gguf_weights import WeightIndex
WeightIndex.save = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
resolve_model(sys.argv[1], cache=Path(sys.argv[2]), progress=False)
"""


def test_what_a_killed_start_left_is_not_believed(tmp_path: Path) -> None:
    model = tiny_model("llama")
    path, cache = tmp_path / "tiny.gguf", tmp_path / "cache"
    write_gguf(model, "llama", path)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path), str(cache)], timeout=500, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert list(cache.glob("models/.*.partial-*/converted/config.json"))
    _assert_same(_resolve(path, cache), model)
    assert not list(cache.glob("models/.*.partial-*"))


def test_any_name_will_do_for_what_begins_as_a_gguf_file(tmp_path: Path) -> None:
    model = tiny_model("llama")
    write_gguf(model, "llama", tmp_path / "blob")
    _assert_same(_resolve(tmp_path / "blob", tmp_path / "cache"), model)


@pytest.mark.parametrize(
    ("facts", "scaling"),
    [
        ({"ARCH.rope.scaling.type": "linear", "ARCH.rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {
                "ARCH.rope.scaling.type": "yarn",
                "ARCH.rope.scaling.factor": 4.0,
                "ARCH.rope.scaling.original_context_length": 64,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
    ],
)
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_rotary_frequencies_are_scaled_as_the_file_says(
    family: str, facts: dict[str, Any], scaling: dict[str, Any], tmp_path: Path
) -> None:
    model = tiny_model(family, rope_parameters={"rope_theta": 1e4, **scaling})
    write_gguf(model, family, tmp_path / "tiny.gguf", facts=facts)
    _assert_same(_resolve(tmp_path / "tiny.gguf", tmp_path / "cache"), model)


def test_rotary_frequencies_divided_as_those_of_llama_3_are_so_again(tmp_path: Path) -> None:
    scaling = {
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    rope = {"rope_type": "llama3", "rope_theta": 5e5, **scaling}
    model = tiny_model("llama", head_dim=64, max_position_embeddings=131072, rope_parameters=rope)
    plain = 5e5 ** -(np.arange(32) / 32)
    divisors = (plain / model.model.rotary_emb.inv_freq.double().numpy()).astype(np.float32)
    assert divisors.max() == pytest.approx(32.0)
    write_gguf(model, "llama", tmp_path / "tiny.gguf", tensors={"rope_freqs.weight": divisors})
    _assert_same(_resolve(tmp_path / "tiny.gguf", tmp_path / "cache"), model)
    divisors[3] *= 1.5
    write_gguf(model, "llama", tmp_path / "odd.gguf", tensors={"rope_freqs.weight": divisors})
    with pytest.raises(ModelError, match=r"odd\.gguf cannot be served: its rotary frequencies are divided"):
        _resolve(tmp_path / "odd.gguf", tmp_path / "cache")


def test_the_end_of_a_turn_ends_a_reply_as_the_end_of_text_does(tmp_path: Path) -> None:
    write_gguf(tiny_model("llama"), "llama", tmp_path / "tiny.gguf", facts={"tokenizer.ggml.eot_token_id": 2})
    folder = _resolve(tmp_path / "tiny.gguf", tmp_path / "cache")
    runner = ModelRunner(folder, num_blocks=2, dtype="float32", device="cpu")
    assert runner.eos_token_ids == frozenset({0, 2})


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("llama", {"split": "some-new-split"}, "splits text as 'some-new-split', which is not known"),
        ("llama", {"facts": {"split.count": 3}}, "one of several parts .* --merge"),
        ("llama", {"facts": {"ARCH.attention.sliding_window": 16}}, "layers see 16 tokens"),
        ("llama", {"facts": {"ARCH.attn_logit_softcapping": 30.0}}, r"its attn_logit_softcapping is 30\.0"),
        (
            "llama",
            {"facts": {"ARCH.rope.scaling.type": "longrope", "ARCH.rope.scaling.factor": 2.0}},
            "scaled as 'longrope'",
        ),
        (
            "llama",
            {"facts": {"ARCH.rope.scaling.type": "yarn", "ARCH.rope.scaling.factor": 2.0}},
            "the original length is not told",
        ),
        (
            "qwen2",
            {
                "facts": {
                    "ARCH.rope.scaling.type": "yarn",
                    "ARCH.rope.scaling.factor": 2.0,
                    "ARCH.rope.scaling.original_context_length": 64,
                    "ARCH.rope.scaling.yarn_log_multiplier": 0.1,
                }
            },
            "scaled as 'yarn, rope.scaling.yarn_log_multiplier'",
        ),
        (
            "gpt2",
            {"facts": {"ARCH.rope.scaling.type": "linear", "ARCH.rope.scaling.factor": 2.0}},
            "not known of its architecture",
        ),
        ("llama", {"tensors": {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}}, "a place for .* of its .* weights"),
        ("llama", {"facts": {"general.architecture": "rwkv9"}}, "rwkv9"),
    ],
)
def test_what_would_be_another_model_is_refused_in_one_line(
    family: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(tiny_model(family), family, path, **options)
    with pytest.raises(ModelError, match=message) as refusal:
        _resolve(path, tmp_path / "cache")
    assert "\n" not in str(refusal.value)
    assert not [each for each in (tmp_path / "cache").glob("models/*") if each.is_dir()]


def test_a_file_that_lacks_weights_names_one(tmp_path: Path) -> None:
    model = tiny_model("llama")
    write_gguf(model, "llama", tmp_path / "tiny.gguf", facts={"ARCH.block_count": 3})
    with pytest.raises(ModelError, match=r"holds no model\.layers\.2\.\S+ of the right shape"):
        _resolve(tmp_path / "tiny.gguf", tmp_path / "cache")


def test_a_file_of_more_array_items_than_any_vocabulary_has_is_refused_unread(tmp_path: Path) -> None:
    num_items = 2_000_001
    field = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 0, num_items) + bytes(num_items)  # an array of bytes
    (tmp_path / "long.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + field)
    with pytest.raises(ModelError, match="2,000,001 items in arrays; at most 2,000,000"):
        _resolve(tmp_path / "long.gguf", tmp_path / "cache")


@pytest.mark.parametrize("num_bytes", [4, 20, 200, 3000, -5000, -1])
def test_a_damaged_file_is_refused_in_one_line(num_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(tiny_model("llama"), "llama", path)
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(ModelError, match="is not a whole GGUF file") as refusal:
        _resolve(path, tmp_path / "cache")
    assert "\n" not in str(refusal.value)


def test_a_name_of_a_gguf_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(ModelError, match=r"text\.gguf is not a GGUF file"):
        _resolve(tmp_path / "text.gguf", tmp_path / "cache")
    with pytest.raises(ModelError, match=r"there is no file .*none\.gguf"):
        _resolve(tmp_path / "none.gguf", tmp_path / "cache")


def test_too_little_disk_space_for_the_converted_weights_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tiny_model("llama"), "llama", tmp_path / "tiny.gguf")
    usage = shutil.disk_usage(tmp_path)._replace(free=3_000_000)
    monkeypatch.setattr(model_store.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelError, match=r"tiny\.gguf needs 50 MB in .* and 3 MB are free"):
        _resolve(tmp_path / "tiny.gguf", tmp_path / "cache")


def test_a_worker_serves_a_file_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIXKV_CACHE", str(tmp_path / "cache"))
    model = tiny_model("qwen2")
    write_gguf(model, "qwen2", tmp_path / "tiny.gguf", split="qwen2")
    config = WorkerConfig(
        model=str(tmp_path / "tiny.gguf"), listen=None, num_blocks=8, dtype="float32", device="cpu", show_progress=False
    )
    sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with Worker(config) as worker:
        assert worker.engine.model().has_chat_template
        stream = worker.engine.generate(GenerateParams(text="In the 12", sampling=sampling))
        history: list[int] = []
        for event in stream:
            if isinstance(event, Started):
                history += unpack_tokens(event.prompt)
            elif isinstance(event, Delta):
                history += event.token_ids
    assert history[:-8] == [TOKENS.index(token) for token in ("I", "n", "Ġthe", "Ġ", "1", "2")]
    for at in range(len(history) - 8, len(history)):
        assert history[at] == int(reference_logits(model, history[:at])[-1].argmax())
