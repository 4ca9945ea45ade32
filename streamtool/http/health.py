"""Looks at the health of upstreams, now and then, where the settings name a path for it (`health`)."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio

from streamtool.errors import StreamtoolError
from streamtool.http.asgi import SCOPE, ASGIApp, ask, nobody_leaves
from streamtool.settings import UpstreamSettings
from streamtool.state.circuit import Circuit

_log = logging.getLogger("streamtool")


@asynccontextmanager
async def watched(
    upstreams: Mapping[str, UpstreamSettings], apps: Mapping[str, ASGIApp], circuits: Mapping[str, Circuit]
) -> AsyncIterator[None]:
    """Inside of the block the circuits know how healthy the upstreams are."""
    async with anyio.create_task_group() as tasks:
        for name, upstream in upstreams.items():
            if upstream.health is not None:
                tasks.start_soon(_watch, upstream, apps[name], circuits[name])
        yield
        tasks.cancel_scope.cancel()


async def _watch(upstream: UpstreamSettings, app: ASGIApp, circuit: Circuit) -> None:
    while True:
        problem = await _look(upstream, app)
        if circuit.looked(healthy=problem is None):
            _log.warning("upstream %s: %s", upstream.name, problem or "healthy again")
        await anyio.sleep(upstream.health_seconds)


async def _look(upstream: UpstreamSettings, app: ASGIApp) -> str | None:
    """What is wrong with it."""
    path = upstream.health or ""
    try:
        with anyio.fail_after(upstream.health_seconds):
            answer = await ask(app, SCOPE, "GET", path, headers=(), receive=nobody_leaves)
    except StreamtoolError as error:
        return error.message
    except TimeoutError:
        return f"no answer at {path} within {upstream.health_seconds:g} seconds"
    return None if 200 <= answer.status < 300 else f"status {answer.status} at {path}"
