"""Imports one module of a large package without the package's dependencies: torch, CUDA, models.

A tool call detector in vLLM or SGLang is a file of plain Python. The modules that it uses are listed by the caller and
actually imported; all others are empty stand-ins.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any


class _Anything(type):
    """A class that has every attribute, can be called, and is empty."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})

    def __call__(cls, *given: Any, **_: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) else _Anything("result", (), {})

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __or__(cls, _: Any) -> Any:
        return cls

    __ror__ = __or__

    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        return {"type": "any"}


class _Empty(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, _Anything(name, (), {}))
        return getattr(self, name)


class _StandIns(MetaPathFinder, Loader):
    def __init__(self, packages: tuple[str, ...], real: tuple[str, ...]) -> None:
        self._packages = packages
        self._real = real

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        if name.partition(".")[0] not in self._packages or name in self._real:
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _Empty(spec.name)
        module.__path__ = [str(Path(entry, *spec.name.split("."))) for entry in sys.path]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty."""


@contextmanager
def stand_ins(package: str, *real: str) -> Iterator[None]:
    """Replace all imports from `package` with stand-ins inside the block, except for the modules `real`. Raises
    ImportError.
    """
    if find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    finder = _StandIns((package, "torch", "transformers"), tuple(f"{package}.{name}" for name in real))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
