"""A proxy in a separate process, and a request whose reply is stored."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
from support.servers import Served

RESPONSES = "/v1/responses"


def ask(served: Served, **fields: Any) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=60) as client:
        return client.post(served.url + RESPONSES, json={"model": "sample", "input": "Hello.", **fields})


@contextmanager
def served_by(variables: Mapping[str, str]) -> Iterator[Served]:
    """Run a proxy in a separate process with these environment variables."""
    variables = {"STREAMTOOL_FORMATS": "tool_call", **variables}
    command = [sys.executable, "-m", "streamtool", "serve", "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, env=os.environ | variables, **pipes) as process:
        assert process.stdout
        try:
            port = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert port
            yield Served(int(port[1]), lambda: 0)
        finally:
            process.terminate()
            process.communicate(timeout=20)
