"""A proxy in front of the scripted model, over a loopback socket, under each server."""

from collections.abc import Iterator

import pytest
from attrs import frozen
from clients.common import Model
from servers import hypercorn_server, uvicorn_server

from streamtool.proxy import Proxy
from streamtool.settings import Settings

SERVERS = {"uvicorn": uvicorn_server, "hypercorn": hypercorn_server}
SETTINGS = Settings(upstreams={"model": {"url": "http://model.test"}})


@frozen
class Place:
    """A running proxy."""

    url: str
    model: Model


@pytest.fixture(scope="module", params=SERVERS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    model = Model()
    with SERVERS[request.param](Proxy(SETTINGS, apps={"model": model.app})) as served:
        yield Place(served.url, model)
