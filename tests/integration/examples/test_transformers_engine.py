"""The example of plain transformers prints what each branch of its chat found in the cache."""

from __future__ import annotations

import re

import pytest
from small_tokenizers import CHATML, byte_level
from tiny_models import CONFIGS, random_model

from radixkv.examples.transformers_engine import main
from radixkv.service import ServiceThread


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model with a token for each byte."""
    folder = tmp_path_factory.mktemp("model")
    byte_level(folder, CHATML)
    config = CONFIGS["llama"]()
    config.vocab_size, config.max_position_embeddings = 260, 1024
    random_model(config).save_pretrained(folder)
    return str(folder)


def rows(output: str) -> dict[str, tuple[int, int]]:
    """Tokens of the prompt and cached ones, by the row's title."""
    found = re.findall(r"^(\w+(?: \d)?) +(\d+) +(\d+) +[\d.]+", output, re.M)
    return {title: (int(prompt), int(cached)) for title, prompt, cached in found}


@pytest.mark.parametrize("is_remote", [False, True], ids=["in process", "in a service"])
def test_every_branch_computes_only_what_is_new(
    is_remote: bool, folder: str, service: ServiceThread, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--service", service.addresses[0]] if is_remote else ["--compare"]
    main(["--model", folder, "--max-new-tokens", "4", *more])
    printed = capsys.readouterr().out
    found = rows(printed)
    assert list(found) == ["turn 1", "turn 2", "turn 3", "regenerated", "edited"]
    assert ("without" in printed) is not is_remote
    assert found["turn 1"][1] == 0
    assert found["turn 2"][1] >= found["turn 1"][0]
    assert found["turn 3"][1] >= found["turn 2"][0]
    assert found["regenerated"] == (found["turn 3"][0], found["turn 3"][0] - 1)
    assert found["turn 1"][0] <= found["edited"][1] < found["turn 2"][0]
