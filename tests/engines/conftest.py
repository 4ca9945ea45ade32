"""The engines. What is not installed is skipped: the extra `engines` brings llama.cpp's server, torch and transformers
come separately.
"""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from engines.engine import Engine, served


def needs(*modules: str) -> None:
    """Skip what needs a module that is not installed."""
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed; docs/engines.md says how to get it")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """llama.cpp's server."""
    needs("xllamacpp", "gguf", "numpy")
    with served("llama_server.py", str(tmp_path_factory.mktemp("llama"))) as engine:
        yield engine


@pytest.fixture(scope="session")
def transformers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """`transformers serve`."""
    needs("torch", "transformers", "accelerate", "gguf", "numpy")
    with served("transformers_server.py", str(tmp_path_factory.mktemp("transformers"))) as engine:
        yield engine
