"""Nothing that comes with a model is run: neither code of its repository nor a pickle."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from tiny_models import save_model

from radixkv.worker.errors import ModelError
from radixkv.worker.generations.text import ChatText
from radixkv.worker.model.model import ModelRunner

ROOT = Path(__file__).resolve().parents[4]
PLANTED = """
from pathlib import Path

Path({mark!r}).write_text("this code ran")
from transformers import LlamaConfig as PlantedConfig
from transformers import LlamaForCausalLM as PlantedModel
from transformers import PreTrainedTokenizerFast as PlantedTokenizer
"""


class _Bomb:
    """What runs when a pickle is read."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> object:
        return (Path.write_text, (self._mark, "this pickle was read"))


def load(folder: Path) -> ModelRunner:
    return ModelRunner(str(folder), num_blocks=8, block_size=4, dtype="float32", device="cpu", quantization="none")


def test_a_checkpoint_that_is_a_pickle_is_refused_unread(tmp_path: Path) -> None:
    folder = Path(save_model("llama", tmp_path / "model"))
    mark = tmp_path / "mark"
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    torch.save({"weight": _Bomb(mark)}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors"):
        load(folder)
    assert not mark.exists()


def plant(folder: Path, mark: Path, model_type: str) -> None:
    """Code of its own in a model's folder, which its configuration asks for."""
    (folder / "planted.py").write_text(PLANTED.format(mark=str(mark)))
    classes = {"AutoConfig": "planted.PlantedConfig", "AutoModelForCausalLM": "planted.PlantedModel"}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": classes, "model_type": model_type}))
    tokenizer = {
        "tokenizer_class": "PlantedTokenizer",
        "auto_map": {"AutoTokenizer": ["planted.PlantedTokenizer", None]},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))


def test_code_in_a_model_s_folder_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    known = Path(save_model("llama", tmp_path / "known"))
    plant(known, mark, "llama")
    assert load(known).vocab_size > 0  # by the class that transformers itself has for it
    unknown = Path(save_model("llama", tmp_path / "unknown"))
    plant(unknown, mark, "planted")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(unknown)
    with pytest.raises(ModelError, match="cannot be loaded"):
        ChatText(str(unknown))
    assert not mark.exists()


def test_every_loader_says_that_no_code_is_to_be_run() -> None:
    calls = 0
    for path in (ROOT / "radixkv").rglob("*.py"):
        text = path.read_text()
        for found in re.finditer(r"Auto\w+\.from_pretrained\(((?:[^()]|\([^()]*\))*)\)", text):
            calls += 1
            assert "trust_remote_code=False" in found[1] or "**where" in found[1], f"{path}: {found[0]}"
        assert "trust_remote_code=True" not in text
        assert "torch.load(" not in text
    assert calls >= 6
