"""Fixtures for all tests: both backends for tests marked `anyio`."""

import gc
import logging
import os
import ssl
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

import certifi
import pytest
from hypothesis import settings

from statemachine import checks, parser
from statemachine.formats import compile as tables
from streamtool.http import templates

tables.compiled = parser.compiled = lru_cache(256)(tables.compiled.__wrapped__)
"""The tests use more sets of formats than any server; each is compiled once in a process."""

fresh_context = ssl.create_default_context
trusting = cache(fresh_context)


def default_context(*args: Any, **options: Any) -> ssl.SSLContext:
    """A TLS context; the one that trusts the world, which each of some thousand clients wants, is made once."""
    return (trusting if not args and options == {"cafile": certifi.where()} else fresh_context)(*args, **options)


ssl.create_default_context = default_context

ASKS = templates.ask_for_template
"""What asks an upstream for a chat template. Tests that count requests would see it, so only one file lets it ask."""


async def shows_none(*_: object) -> None:
    """An upstream that shows no template."""


templates.ask_for_template = shows_none


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstreams are asked for their chat templates."""
    monkeypatch.setattr(templates, "ask_for_template", ASKS)
    monkeypatch.setattr("streamtool.probe.client.ask_for_template", ASKS)


checks.enforce()  # what any parser of any test emits is legal by the tables of `statemachine.states`
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")  # the same examples in every run; `-m long` looks for new ones


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: a third of the time a test waits, for a socket or for a process."""
    return 1 + (os.cpu_count() or 1)


def pytest_collection_finish() -> None:
    """Let the garbage collector forget the thousands of collected tests, and look at the rest less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Tests marked `anyio` run on asyncio and on trio. What waits for time is marked `trio` and uses `autojump_clock`."""
    return str(request.param)


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """Commands that run in this process configure its logging; the next test knows nothing of it."""
    root, ours = logging.getLogger(), logging.getLogger("streamtool")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
