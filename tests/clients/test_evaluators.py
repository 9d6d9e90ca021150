"""Evaluators that nobody here wrote: lm_eval's `local-completions`, whose multiple choice asks how likely prompts are.

Fetched into the cache folder at the first run (500 MB); skipped where it cannot be had.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers as tf
from chat_stack import gateway

from radixkv import PrefixCache
from radixkv.gateway.server import GatewayServer
from radixkv.util.folders import cache_folder
from radixkv.worker.engine.engine import Engine
from radixkv.worker.generations.text import ChatText
from radixkv.worker.model.model import ModelRunner

LM_EVAL = "lm_eval==0.4.13"
BESIDE = (
    *("datasets", "dill", "evaluate", "rouge_score", "sacrebleu", "scikit-learn", "aiohttp", "more-itertools"),
    *("pytablewriter", "sqlitedict", "word2number", "aiohappyeyeballs", "aiosignal", "attrs", "DataProperty"),
    *("frozenlist", "joblib", "mbstrdecoder", "multidict", "multiprocess", "narwhals", "pathvalidate", "propcache"),
    *("pyarrow", "scipy", "six", "tabledata", "tabulate", "tcolorpy", "threadpoolctl", "yarl", "absl-py", "colorama"),
    *("lxml", "nltk", "pandas", "portalocker", "chardet", "python-dateutil", "pytz", "typepy", "defusedxml", "xxhash"),
)
"""What it needs that this project does not; torch and transformers are those that are installed."""

TIMEOUT_S = 400.0
NUM_REQUESTS = 200
NUM_CHOICES = 4
WORDS = ("river", "stone", "cloud", "lamp", "bread", "paper", "green", "seven", "quiet", "north")

pytestmark = pytest.mark.slow


class Served(NamedTuple):
    """A tiny model with a real tokenizer, and where it is served."""

    folder: str
    engine: Engine
    server: GatewayServer


@pytest.fixture(scope="module")
def packages() -> Path:
    folder = cache_folder() / "clients" / LM_EVAL.replace("==", "-")
    if not folder.is_dir():
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(partial)]
        fetched = subprocess.run([*command, LM_EVAL, *BESIDE], capture_output=True, text=True, check=False)
        if fetched.returncode:
            pytest.skip(f"lm_eval cannot be fetched: {fetched.stderr[-200:]}")
        partial.rename(folder)
    return folder


@pytest.fixture(scope="module")
def served(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = str(tmp_path_factory.mktemp("tiny"))
    tokenizer = tf.AutoTokenizer.from_pretrained(default_model)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(5)
    config = tf.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.eos_token_id,
    )
    model: Any = tf.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    runner = ModelRunner(folder, num_blocks=512, dtype="float32", device="cpu")
    with (
        Engine(runner, PrefixCache(512), text=ChatText(folder), model_name="tiny") as engine,
        gateway(engine) as server,
    ):
        yield Served(folder, engine, server)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    draws = random.Random(3)
    questions = [
        {
            "question": " ".join(draws.choices(WORDS, k=8)),
            "choices": [" ".join(draws.choices(WORDS, k=draws.randint(1, 3))) for _ in range(NUM_CHOICES)],
            "answer": draws.randrange(NUM_CHOICES),
        }
        for _ in range(NUM_REQUESTS)
    ]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    shared = (
        "dataset_path: json\ntest_split: train\nfewshot_split: train\nnum_fewshot: 5\n"
        f"dataset_kwargs:\n  data_files: {folder / 'questions.jsonl'}\n"
        'doc_to_text: "Question: {{question}}\\nAnswer:"\n'
    )
    (folder / "choice.yaml").write_text(
        f'task: choice\noutput_type: multiple_choice\n{shared}doc_to_choice: "{{{{choices}}}}"\ndoc_to_target: answer\n'
        "fewshot_config:\n  sampler: first_n\nmetric_list:\n  - metric: acc\n"
    )
    (folder / "words.yaml").write_text(
        f'task: words\noutput_type: generate_until\n{shared}doc_to_target: "{{{{choices[answer]}}}}"\n'
        "fewshot_config:\n  sampler: first_n\ngeneration_kwargs:\n  until: ['\\n']\n  max_gen_toks: 8\n"
        "metric_list:\n  - metric: exact_match\n"
    )
    return folder


def evaluate(packages: Path, folder: Path, **asked: Any) -> dict[str, Any]:
    """What lm_eval finds."""
    environment = os.environ | {
        "PYTHONPATH": str(packages),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(folder / "home"),
        "OPENAI_API_KEY": "any",
        "OMP_NUM_THREADS": "1",
    }
    told = json.dumps({"include_path": str(folder), "log_samples": True, **asked})
    script = Path(__file__).with_name("lm_eval_run.py")
    done = subprocess.run(
        [sys.executable, "-P", str(script), told],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def served_at(served: Served) -> dict[str, Any]:
    return {
        "model": "local-completions",
        "model_args": {
            "model": "tiny",
            "base_url": f"{served.server.url}/completions",
            "tokenizer": served.folder,
            "tokenizer_backend": "huggingface",
            "num_concurrent": 8,
            "max_retries": 1,
            "max_length": 1024,
        },
    }


def test_multiple_choice_is_scored_as_by_transformers(packages: Path, tasks: Path, served: Served) -> None:
    before = served.engine.stats().engine
    asked = {"tasks": ["choice"], "limit": NUM_REQUESTS // NUM_CHOICES}
    ours = evaluate(packages, tasks, **asked, **served_at(served))
    after = served.engine.stats().engine
    arguments = {"pretrained": served.folder, "dtype": "float32", "device": "cpu"}
    theirs = evaluate(packages, tasks, **asked, model="hf", model_args=arguments, batch_size=8)
    assert len(ours["samples"]["choice"]) == NUM_REQUESTS // NUM_CHOICES
    for (doc, told), (other_doc, expected) in zip(ours["samples"]["choice"], theirs["samples"]["choice"], strict=True):
        assert doc == other_doc
        for [[logprob, is_greedy]], [[wanted, was_greedy]] in zip(told, expected, strict=True):
            assert abs(float(logprob) - float(wanted)) < 1e-3
            assert str(is_greedy) == str(was_greedy)
    assert ours["results"]["choice"]["acc,none"] == theirs["results"]["choice"]["acc,none"]
    num_asked = after.num_prompt_tokens - before.num_prompt_tokens
    assert after.num_finished - before.num_finished == NUM_REQUESTS
    assert after.num_computed_tokens - before.num_computed_tokens < num_asked / 4  # the shots were computed once


def test_replies_are_generated_until_their_stop(packages: Path, tasks: Path, served: Served) -> None:
    found = evaluate(packages, tasks, tasks=["words"], **served_at(served))
    assert len(found["samples"]["words"]) == NUM_REQUESTS
    assert all("\n" not in reply for _, [[reply]] in found["samples"]["words"])
