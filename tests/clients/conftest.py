"""Servers for clients on a loopback socket: a proxy for the scripted model, or an app with the middleware."""

from collections.abc import Iterator
from typing import Any

import pytest
from attrs import frozen
from support.clients import Model
from support.servers import hypercorn_server, uvicorn_server

from streamtool.middleware import ToolMiddleware
from streamtool.proxy import Proxy
from streamtool.settings import Settings

SERVERS = {"uvicorn": uvicorn_server, "hypercorn": hypercorn_server, "mounted": uvicorn_server}
SETTINGS = Settings(upstreams={"model": {"url": "http://model.test"}})


@frozen
class Place:
    """A running server."""

    url: str
    model: Model


@pytest.fixture(scope="module", params=SERVERS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    model = Model()
    app: Any = Proxy(SETTINGS, apps={"model": model.app})
    if request.param == "mounted":
        app = ToolMiddleware(model.app, app_protocol="chat")
    with SERVERS[request.param](app) as served:
        yield Place(served.url, model)
