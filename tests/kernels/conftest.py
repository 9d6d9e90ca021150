"""Of a product of three parameters and more the kernels' tests run a pairwise sample by default, and all of it with `slow`."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from pairwise import pairwise_sample


@pytest.fixture(autouse=True)
def _draws() -> None:
    """A test draws the same numbers whichever ran before it."""
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as slow what the sample of a test's own product leaves out."""
    products: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            products[item.nodeid.partition("[")[0]].append(item)
    for product in products.values():
        kept = set(pairwise_sample([_parameters(item) for item in product]))
        for index, item in enumerate(product):
            if index not in kept:
                item.add_marker(pytest.mark.slow)


def _parameters(item: pytest.Function) -> dict[str, object]:
    """Which value each has. The names of one `parametrize` are one parameter, so that each of its rows is kept."""
    values = {name: id(value) for name, value in item.callspec.params.items()}
    rows: dict[str, object] = {}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        rows[str(names)] = tuple(values.pop(name.strip()) for name in names)
    return values | rows
