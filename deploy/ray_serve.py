"""The proxy on Ray Serve: `serve run ray_serve:app settings=streamtool.toml`, where this file is.

    clients ─▶ Ray's HTTP proxy, on each node ─▶ replicas, each a Proxy ─▶ upstreams

The settings are read here, once, and given to the replicas; a wrong one is an error of `serve run`. What is told by
arguments (`settings=… replicas=4 streams=200`) may as well stand in a file of Ray Serve's, under `args`.
"""

import os
from pathlib import Path

from pydantic import BaseModel
from ray import serve
from ray.serve import Application

from streamtool.http.asgi import ASGIApp
from streamtool.observe import logs
from streamtool.proxy import Proxy
from streamtool.settings import load


class Arguments(BaseModel):
    """What `serve run` is told."""

    settings: str
    """The file of the settings."""
    replicas: int = 2
    """The fewest; each uses a core."""
    at_most: int = 20
    streams: int = 400
    """Open requests that a replica should have on average: with more, another one is added."""


def app(told: Arguments) -> Application:
    """What Ray Serve runs. Raises SettingsError, OSError."""
    settings = load(Path(told.settings).read_text(encoding="utf-8"), os.environ)

    def build() -> ASGIApp:
        logs.configure(settings)
        return Proxy(settings)

    deployment = serve.deployment(
        serve.ingress(build)(),
        name="streamtool",
        autoscaling_config={
            "min_replicas": told.replicas,
            "max_replicas": told.at_most,
            "target_ongoing_requests": told.streams,
        },
        max_ongoing_requests=2 * settings.limits.exchanges,  # beyond them it answers 503; Ray would let clients wait
        ray_actor_options={"num_cpus": 1},
        graceful_shutdown_timeout_s=settings.grace + 10,
    )
    return deployment.bind()
