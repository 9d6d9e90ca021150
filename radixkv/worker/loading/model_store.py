"""Folders of models in the cache folder, each made once and put there by one rename.

All work before the rename is in a `.partial` folder next to the goal and under a lock. So two starters do the work once, and
the next one removes the remains of an interrupted one.
"""

from __future__ import annotations

import errno
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixkv.worker.errors import ModelError

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["StoredModel", "progress_bars", "store_once"]


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model to store. `name` is for people; `folder_name` names the content, so that other content has another folder;
    `disk_bytes` is the peak need while making it.
    """

    name: str
    folder_name: str
    disk_bytes: int


def store_once(model: StoredModel, cache: Path, make: Callable[[Path], Path]) -> Path:
    """The folder of `model` in `cache`, made if missing.

    Args:
        make: makes the model within an empty folder, and returns the folder in it to keep.

    Raises:
        ModelError: the model does not fit on the disk or cannot be kept there, or as `make`.
    """
    from filelock import FileLock

    models = cache / "models"
    goal = models / model.folder_name
    if goal.is_dir():
        return goal
    try:
        models.mkdir(parents=True, exist_ok=True)
        with FileLock(models / f".{model.folder_name}.lock"):
            if not goal.is_dir():
                _remove_leftovers(models, model)
                _check_free_space(models, model)
                with tempfile.TemporaryDirectory(prefix=_partial_prefix(model), dir=models) as partial:
                    make(Path(partial)).rename(goal)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(models, model) from error
        raise ModelError(f"the model {model.name} cannot be kept in {models}: {error}; set RADIXKV_CACHE") from error
    return goal


def _partial_prefix(model: StoredModel) -> str:
    return f".{model.folder_name}.partial-"


def _remove_leftovers(models: Path, model: StoredModel) -> None:
    """Remove partial folders. The lock is held, so no live process uses them."""
    for leftover in models.glob(f"{_partial_prefix(model)}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _check_free_space(models: Path, model: StoredModel) -> None:
    if shutil.disk_usage(models).free < model.disk_bytes:
        raise _no_space(models, model)


def _no_space(models: Path, model: StoredModel) -> ModelError:
    free = shutil.disk_usage(models).free
    return ModelError(
        f"the model {model.name} needs {model.disk_bytes / 1e6:,.0f} MB in {models} "
        f"and {free / 1e6:,.0f} MB are free; make room there, or set RADIXKV_CACHE to another folder"
    )


@contextmanager
def progress_bars(visible: bool) -> Iterator[Progress]:
    """Progress bars on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr), disable=not visible) as bars:
        yield bars


_TURN = threading.RLock()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bars and advice: errors only. One thread at a time: its imports are circular."""
    with _TURN:
        yield from _quiet()


def _quiet() -> Iterator[None]:
    from transformers import utils

    logging: Any = utils.logging  # its functions have no types
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
