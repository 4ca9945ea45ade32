"""Servers of real models. Missing packages are skipped; the `engines` extra installs llama.cpp's server."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from support.engine import Engine, served
from support.real_models import gemma, smollm2


@pytest.fixture(scope="session")
def chat_model() -> Iterator[Engine]:
    """Yield a server of SmolLM2-135M-Instruct."""
    yield from _served(smollm2)


@pytest.fixture(scope="session")
def base_model() -> Iterator[Engine]:
    """Yield a server of Gemma 3 270M, which follows examples instead of instructions."""
    yield from _served(gemma)


def _served(file) -> Iterator[Engine]:
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed; see docs/engines.md")
    with served("model_server.py", str(file())) as engine:
        yield engine
