"""Errors on the way to the upstream are named: file descriptors, certificates, TLS, host names, HTTP proxies."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.servers import listener, uvicorn_server

from streamtool.core.errors import SettingsError
from streamtool.proxy import Proxy
from streamtool.sample import app as sample
from streamtool.settings import Settings
from streamtool.testing import stream_asgi

PATH = "/v1/chat/completions"
BODY = json.dumps({"model": "sample", "messages": [{"role": "user", "content": "Hello."}]}).encode()
PEM = Path(__file__).parent.parent / "support" / "localhost.pem"
"""Key and self-signed certificate of a server on loopback."""
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR")

both = pytest.mark.anyio


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Unset all variables for proxies and certificates."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


async def ask(url: str) -> tuple[int, dict[str, Any]]:
    """Return status and error, or body, of a reply through a proxy with the upstream `url`."""
    proxy = Proxy(Settings(upstreams={"u": {"url": url}}))
    headers = [(b"content-type", b"application/json")]
    async with stream_asgi(proxy, PATH, method="POST", body=BODY, headers=headers) as reply:
        status = await reply.head()
        body = json.loads(await reply.body())
    await proxy.aclose()
    return status, body.get("error", body)


@contextmanager
def serving(connection: Callable[[socket.socket], None]) -> Iterator[int]:
    """Yield a port on which `serve` handles each connection."""
    sock = listener()

    def run() -> None:
        while True:
            try:
                accepted, _ = sock.accept()
            except OSError:
                return
            with accepted, suppress(OSError):
                accepted.settimeout(5)
                connection(accepted)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sock.getsockname()[1]
    finally:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()
        thread.join(5)
        assert not thread.is_alive()


def _unknown(*_: Any, **__: Any) -> Any:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@both
async def test_an_unknown_host_name_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(socket, "getaddrinfo", _unknown)
    status, error = await ask("http://models.example:8000")
    assert status == 502
    assert error["message"] == (
        "the name of the upstream at models.example:8000 cannot be resolved (Name or service not known); "
        "is its url correct?"
    )


@both
@pytest.mark.parametrize(
    ("scheme", "answer", "told"),
    [
        ("https", b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n", "speak TLS; should its url begin with http://?"),
        ("http", b"\x15\x03\x01\x00\x02\x02\x46", "speak HTTP; should its url begin with https://?"),
    ],
    ids=["TLS to a port that speaks none", "a port that speaks TLS"],
)  # fmt: skip
async def test_the_wrong_scheme_is_reported(scheme: str, answer: bytes, told: str):
    def serve(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(answer)

    with serving(serve) as port:
        status, error = await ask(f"{scheme}://127.0.0.1:{port}")
    assert (status, error["message"]) == (502, f"the upstream at 127.0.0.1:{port} does not {told}")


@both
async def test_an_untrusted_certificate_is_reported_and_its_authority_can_be_configured(
    monkeypatch: pytest.MonkeyPatch,
):
    with uvicorn_server(sample, ssl_certfile=str(PEM)) as server:
        url = f"https://127.0.0.1:{server.port}"
        status, error = await ask(url)
        assert status == 502
        assert error["message"].startswith(
            f"the certificate of the upstream at 127.0.0.1:{server.port} is not accepted"
        )
        assert "SSL_CERT_FILE" in error["message"]
        monkeypatch.setenv("SSL_CERT_FILE", str(PEM))
        assert (await ask(url))[0] == 200


@both
async def test_a_port_without_a_listener_is_reported():
    with serving(lambda _: None) as port:
        pass
    status, error = await ask(f"http://127.0.0.1:{port}")
    assert (status, error["message"]) == (502, f"the upstream at 127.0.0.1:{port} cannot be reached; is it running?")


def test_unreadable_certificates_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    with pytest.raises(SettingsError, match="SSL_CERT_FILE cannot be read"):
        Proxy(Settings(upstreams={"u": {"url": "https://models.example"}}))


WITHOUT_DESCRIPTORS = """
import json, os, resource, sys
import anyio
from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import stream_asgi

async def main():
    proxies = [Proxy(Settings(upstreams={"u": {"url": url}})) for url in sys.argv[2:]]
    async with anyio.create_task_group():
        await anyio.sleep(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    told = []
    for proxy in proxies:
        for path, fields in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello."}]}),
            ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "Hello."}]}),
            ("/v1/responses", {"input": "Hello."}),
        ):
            body = json.dumps({"model": "m", **fields}).encode()
            async with stream_asgi(proxy, path, method="POST", body=body, headers=[]) as reply:
                told.append([await reply.head(), json.loads(await reply.body())["error"]["message"]])
    for descriptor in taken:
        os.close(descriptor)
    print(json.dumps(told))

anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_without_file_descriptors_the_limit_is_named_from_the_first_request_on(backend: str):
    urls = ("http://localhost:9", "http://127.0.0.1:9", "https://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS, backend, *urls],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    told = "no file descriptor is left for a connection to the upstream at {}; raise the limit (ulimit -n)"
    expected = [[502, told.format(url.partition("//")[2])] for url in urls for _ in range(3)]
    assert json.loads(done.stdout) == expected


@both
@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_a_proxy_from_the_environment_is_used(monkeypatch: pytest.MonkeyPatch, name: str):
    asked: list[bytes] = []

    def proxy(connection: socket.socket) -> None:
        asked.append(connection.recv(65536).split(b"\r\n")[0])
        connection.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}")

    with serving(proxy) as port:
        monkeypatch.setenv(name, f"127.0.0.1:{port}")
        assert (await ask("http://models.example:8000/v1"))[0] == 404
        assert asked == [b"POST http://models.example:8000/v1/chat/completions HTTP/1.1"]
        monkeypatch.setenv("NO_PROXY", "other.example, .example")
        monkeypatch.setattr(socket, "getaddrinfo", _unknown)
        assert "cannot be resolved" in (await ask("http://models.example:8000/v1"))[1]["message"]
    assert len(asked) == 1


@both
async def test_the_error_of_an_http_proxy_is_reported(monkeypatch: pytest.MonkeyPatch):
    def proxy(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")

    with serving(proxy) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@127.0.0.1:{port}")
        status, error = await ask("https://models.example/v1")
    assert status == 502
    assert error["message"] == (
        f"the upstream at models.example (through the proxy 127.0.0.1:{port}) cannot be reached: "
        "the proxy answered 407 Proxy Authentication Required"
    )


@both
async def test_loopback_is_reached_without_a_proxy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with uvicorn_server(sample) as server:
        assert (await ask(server.url))[0] == 200


@pytest.mark.parametrize("value", ["socks5://user:secret@127.0.0.1:1080", "ftp://127.0.0.1", "http://", "http://a:b:c"])
def test_an_unusable_proxy_is_rejected_by_name(monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv("ALL_PROXY", value)
    with pytest.raises(SettingsError, match=r"ALL_PROXY: .*add models\.example to NO_PROXY") as raised:
        Proxy(Settings(upstreams={"u": {"url": "https://models.example"}}))
    assert "secret" not in raised.value.message
    Proxy(Settings(upstreams={"u": {"url": "http://localhost:8000"}}))
