"""A proxy in a separate process, and a request whose reply is stored."""

import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
from support.forked import Forked
from support.servers import Served

RESPONSES = "/v1/responses"


def ask(served: Served, **fields: Any) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=60) as client:
        return client.post(served.url + RESPONSES, json={"model": "sample", "input": "Hello.", **fields})


@contextmanager
def served_by(variables: Mapping[str, str]) -> Iterator[Served]:
    """Run a proxy in a separate process with these environment variables."""
    variables = {"STREAMTOOL_FORMATS": "tool_call", **variables}
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123  a descriptor is sent
        process = Forked(["serve", "--port", "0"], os.environ | variables, nowhere)
    try:
        port = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert port
        yield Served(int(port[1]), lambda: 0)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()
