# SPDX-License-Identifier: Apache-2.0
"""Calls functions after Python has imported a module, to rebind names in packages that are not imported yet."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

Call = Callable[[ModuleType], None]


class _Finder(importlib.abc.MetaPathFinder):
    """Calls functions after an import. Exists once per process: two finders would call each other without end."""

    def __init__(self) -> None:
        self.calls: dict[str, list[Call]] = {}

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        if name not in self.calls:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for call in self.calls[name]:
                call(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_FINDER = _Finder()


def after_import(calls: Mapping[str, Call]) -> None:
    """Call `calls[name](module)` when the module of this name has been executed; at once, if it has been."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    for name, call in calls.items():
        _FINDER.calls.setdefault(name, []).append(call)
        if module := sys.modules.get(name):
            call(module)
