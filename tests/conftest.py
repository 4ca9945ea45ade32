"""Fixtures for all tests: both backends for tests marked `anyio`."""

import gc

import pytest


def pytest_collection_finish() -> None:
    """Let the garbage collector forget the thousands of collected tests, which it would look at again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Tests marked `anyio` run on asyncio and on trio. What waits for time is marked `trio` and uses `autojump_clock`."""
    return str(request.param)
