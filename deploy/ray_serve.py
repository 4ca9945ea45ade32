"""The proxy on Ray Serve: `serve run ray_serve:app settings=streamtool.toml`, in the folder of this file.

    clients ─▶ Ray's HTTP proxy, on each node ─▶ replicas, each a Proxy ─▶ upstreams

The settings are read once, here, and passed to the replicas; invalid settings are an error of `serve run`. The
arguments (`settings=… replicas=4 streams=200`) can also be in a file for Ray Serve, under `args`.
"""

import os
from pathlib import Path

from pydantic import BaseModel
from ray import serve
from ray.serve import Application

from streamtool.asgi.types import ASGIApp
from streamtool.observe import logs
from streamtool.proxy import Proxy
from streamtool.settings import load


class Arguments(BaseModel):
    """Arguments of `serve run`."""

    settings: str
    """Path of the settings file."""
    replicas: int = 2
    """Minimum number of replicas; each uses a core."""
    at_most: int = 20
    streams: int = 400
    """Average number of open requests per replica; above it, a replica is added."""


def app(told: Arguments) -> Application:
    """Return the application for Ray Serve. Raises SettingsError, OSError."""
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
        max_ongoing_requests=2 * settings.limits.exchanges,  # more get a 503; Ray would let clients wait
        ray_actor_options={"num_cpus": 1},
        graceful_shutdown_timeout_s=settings.grace + 10,
    )
    return deployment.bind()
