"""A few modules of a peer's package, executed without the dependencies of its other modules.

Only the named modules are executed; everything else that they import becomes an inert stand-in, a module whose attributes are
empty classes: the rest of the package, and packages that are not installed. No measured call goes through a stand-in.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from typing import Any

__all__ = ["StandIns"]

MAX_STAND_INS = 64


class StandIns(MetaPathFinder, Loader):
    """Imports modules of one package in `folder`, and finds stand-ins for all that are not executed.

    Args:
        folder: of the package.
        package: its name.
        executed: modules that are executed, with their submodules.
        inert: submodules of those that are not.
        forwarded: stand-ins whose attributes are first looked up in an executed module, by name.
        needed: packages without a stand-in: if missing, the import fails.
    """

    def __init__(
        self,
        folder: Path,
        package: str,
        executed: Sequence[str],
        inert: Sequence[str] = (),
        forwarded: Mapping[str, str] | None = None,
        needed: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.package = package
        self.forwarded = forwarded or {}
        self._executed = executed
        self._inert = inert
        self._needed = {"", package, *needed}
        self._missing_packages: set[str] = set()

    def load(self, names: Sequence[str]) -> list[types.ModuleType]:
        """Import the modules; a package that is not installed becomes a stand-in and the import starts again.

        Raises:
            ModuleNotFoundError: a module of the package itself, or a needed package, is missing.
        """
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
            sys.path.append(str(self.folder))
        for _ in range(MAX_STAND_INS):
            try:
                return [importlib.import_module(name) for name in names]
            except ModuleNotFoundError as error:
                missing = (error.name or "").partition(".")[0]
                if missing in self._needed or missing in self._missing_packages:
                    raise
                self._missing_packages.add(missing)
                for name in [name for name in sys.modules if name.partition(".")[0] == self.package]:
                    del sys.modules[name]
        raise ImportError(f"more than {MAX_STAND_INS} packages are missing: {sorted(self._missing_packages)}")

    def find_spec(self, fullname: str, _path: Any, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        package = fullname.partition(".")[0]
        if package == self.package:
            if _is_under(fullname, self._executed) and not _is_under(fullname, self._inert):
                return None
        elif package not in self._missing_packages:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name, self.forwarded.get(spec.name))

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = [str(self.folder / module.__name__.replace(".", "/"))]


class _EmptyClass:
    """Accepts any call; as a decorator, with or without arguments, it changes nothing."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **_kwargs: Any) -> Any:
        return args[0] if args else None

    def __class_getitem__(cls, _item: Any) -> type:
        return cls

    def __getattr__(self, _name: str) -> None:
        return None


class _StandIn(types.ModuleType):
    """A module with an empty class for every attribute, or an executed module's attribute if it is forwarded to one."""

    def __init__(self, name: str, real: str | None) -> None:
        super().__init__(name)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._real is not None:
            found = getattr(importlib.import_module(self._real), name, None)
            if found is not None:
                return found
        stand_in = type(name, (_EmptyClass,), {})
        setattr(self, name, stand_in)
        return stand_in


def _is_under(name: str, prefixes: Sequence[str]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)
