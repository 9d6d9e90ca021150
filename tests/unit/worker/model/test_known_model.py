"""What a first start found out about a GGUF model serves a later one: the same logits, and no code of the model imported."""

from __future__ import annotations

import json
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_gguf import ARCHITECTURES, TOKENS, Kind, tiny_model, write_gguf

from radixkv.kernels.runtime.native_build import native_library
from radixkv.util.folders import cache_folder
from radixkv.worker.loading.default_model import resolve_model
from radixkv.worker.model import known_model
from radixkv.worker.model.model import ForwardRow, ModelRunner

pytestmark = pytest.mark.skipif(native_library() is None, reason="there is no C++ compiler here")

BUILT_KERNELS = cache_folder() / "kernels"

WIDE = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
ROWS = [ForwardRow(list(range(3, 43)), 0, array("i", [6, 1, 4, 3, 2, 5]), 0, True)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of models; the kernels in it are those of the user, or each process would compile them."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "kernels").symlink_to(BUILT_KERNELS)
    monkeypatch.setenv("RADIXKV_CACHE", str(tmp_path / "cache"))


def converted(family: str, tmp_path: Path) -> Path:
    write_gguf(
        tiny_model(family, **WIDE),
        family,
        tmp_path / "tiny.gguf",
        kinds=lambda name: Kind.Q8_0 if "embed" in name else Kind.Q4_0,
    )
    return Path(resolve_model(str(tmp_path / "tiny.gguf"), progress=False))


def load(folder: Path, **arguments: Any) -> ModelRunner:
    return ModelRunner(
        str(folder), num_blocks=8, block_size=8, dtype="float32", device="cpu", quantization="int8", **arguments
    )


def facts(runner: ModelRunner) -> tuple[Any, ...]:
    return (
        runner.num_parameters,
        runner.vocab_size,
        runner.max_model_len,
        runner.eos_token_ids,
        runner.sampling_defaults,
        runner.widest_output,
        runner.quantization,
        runner.num_layers,
        runner.token_bytes,
        runner.is_native,
    )


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_later_start_gives_the_logits_of_the_first_to_the_bit(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = converted(family, tmp_path)
    index = json.loads((folder / "gguf.json").read_text())
    index["tensors"].reverse()  # a file has them in any order, the last layer first too
    (folder / "gguf.json").write_text(json.dumps(index))
    first = load(folder)
    assert first.is_native
    assert first.num_parameters == tiny_model(family, **WIDE).num_parameters()
    monkeypatch.setattr(ModelRunner, "_take", None)
    later = load(folder)
    assert facts(later) == facts(first)
    assert torch.equal(later.forward(ROWS), first.forward(ROWS))
    assert load(folder, max_model_len=20).max_model_len == 20
    assert load(folder, kv_dtype="int8").kv_format is not None


IMPORTS = """
import sys
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.generations.text import ChatText
ModelRunner(sys.argv[1], num_blocks=8, dtype="float32", device="cpu", quantization="int8")
ChatText(sys.argv[1])
print([name for name in sys.modules if name in ("transformers.modeling_utils", "transformers.generation", "torch._dynamo")])
"""


def test_a_later_start_imports_no_code_of_models(tmp_path: Path) -> None:
    folder = converted("llama", tmp_path)
    load(folder)
    told = subprocess.run([sys.executable, "-c", IMPORTS, str(folder)], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


@pytest.mark.parametrize("damage", ["other versions", "half a file", "no object"])
def test_what_others_found_or_left_unfinished_is_not_believed(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = converted("llama", tmp_path)
    expected = load(folder).forward(ROWS)
    (kept,) = folder.glob("known-*.json")
    whole = kept.read_text()
    if damage == "other versions":
        kept.write_text(json.dumps(json.loads(whole) | {"found_by": "another"}))
    else:
        kept.write_text(whole[: len(whole) // 2] if damage == "half a file" else "null")
    monkeypatch.setattr(known_model, "load_known", None)
    assert torch.equal(load(folder).forward(ROWS), expected)
    assert kept.read_text() == whole


def test_a_folder_that_cannot_be_written_is_served_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("read-only")

    folder = converted("llama", tmp_path)
    monkeypatch.setattr(Path, "write_text", refuse)
    assert load(folder).is_native
    assert not list(folder.glob("known-*"))


def test_what_a_folder_brings_along_is_not_believed(tmp_path: Path) -> None:
    folder = converted("llama", tmp_path)
    expected = load(folder).forward(ROWS)
    elsewhere = folder.rename(tmp_path / "downloaded")
    (kept,) = elsewhere.glob("known-*.json")
    kept.write_text(kept.read_text().replace('"vocab_size": ', '"vocab_size": 9'))
    assert torch.equal(load(elsewhere).forward(ROWS), expected)


def test_a_model_that_the_native_decoder_does_not_run_is_not_kept(tmp_path: Path) -> None:
    assert "gemma2" in ARCHITECTURES
    write_gguf(tiny_model("gemma2"), "gemma2", tmp_path / "tiny.gguf")
    folder = Path(resolve_model(str(tmp_path / "tiny.gguf"), progress=False))
    runner = ModelRunner(str(folder), num_blocks=8, block_size=8, dtype="float32", device="cpu")
    assert not runner.is_native
    assert not list(folder.glob("known-*"))
    assert max(ROWS[0].token_ids) < len(TOKENS)
