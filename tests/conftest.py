"""Fixtures for all tests: both backends for tests marked `anyio`."""

import pytest


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Tests marked `anyio` run on asyncio and on trio. What waits for time is marked `trio` and uses `autojump_clock`."""
    return str(request.param)
