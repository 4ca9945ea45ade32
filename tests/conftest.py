"""Fixtures for all tests: both backends for tests marked `anyio`."""

import gc

import pytest
from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")  # the same examples in every run; `-m long` looks for new ones


def pytest_collection_finish() -> None:
    """Let the garbage collector forget the thousands of collected tests, which it would look at again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Tests marked `anyio` run on asyncio and on trio. What waits for time is marked `trio` and uses `autojump_clock`."""
    return str(request.param)
