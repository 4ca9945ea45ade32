"""Fixtures of the engines. Missing engines are skipped: the `engines` extra installs llama.cpp's server; torch and
transformers are installed separately.
"""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from support.engine import Engine, served


def needs(*modules: str) -> None:
    """Skip the test if a module is not installed."""
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed; see docs/engines.md")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Yield llama.cpp's server."""
    needs("xllamacpp", "gguf", "numpy")
    with served("llama_server.py", str(tmp_path_factory.mktemp("llama"))) as engine:
        yield engine


@pytest.fixture(scope="session")
def transformers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Yield `transformers serve`."""
    needs("torch", "transformers", "accelerate", "gguf", "numpy")
    with served("transformers_server.py", str(tmp_path_factory.mktemp("transformers"))) as engine:
        yield engine
