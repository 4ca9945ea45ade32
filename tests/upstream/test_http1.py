"""The asyncio transport to upstreams reads every response as httpcore and h11 do, wherever it is split."""

import asyncio
import contextlib
import gc
import ssl
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
import uvloop

from streamtool.upstream import http1 as asyncio_network
from streamtool.upstream.http1 import AsyncioNetwork, ResponseBody
from streamtool.upstream.http_messages import HeaderTimeout, HttpRequest, RequestUrl

PEM = Path(__file__).parent.parent / "support" / "localhost.pem"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n"
EVENTS = b"d\r\ndata: \xc3\xa9ins\n\n\r\n5;x=y\r\nd: 2\n\r\n0\r\n"
SIZED = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
ANSWERS = {
    "a length": SIZED,
    "chunks": CHUNKED + b"content-type: text/event-stream\r\n\r\n" + EVENTS + b"\r\n",
    "chunks and trailers": CHUNKED + b"trailer: x-sum\r\n\r\n" + EVENTS + b"x-sum: 12\r\n\r\n",
    "to the end of the connection": b"HTTP/1.1 200 OK\r\nserver: old\r\n\r\nuntil the end",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\n\r\nold",
    "no body": b"HTTP/1.1 204 No Content\r\n\r\n",
    "no reason": b"HTTP/1.1 200 \r\ncontent-length: 2\r\n\r\nok",
    "empty": b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n",
    "hints before it": b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + SIZED,
    "a header twice": b"HTTP/1.1 429 Too Many\r\nX-A: 1\r\nx-a:  2 \r\nretry-after: 3\r\ncontent-length: 1\r\n\r\n!",
}
BROKEN = {
    "nothing": b"",
    "half a header": b"HTTP/1.1 200 OK\r\ncontent-le",
    "half a body": SIZED[:-2],
    "half a chunk": CHUNKED + b"\r\n" + EVENTS[:9],
    "no last chunk": CHUNKED + b"\r\n" + EVENTS[:-3],
    "an alert of TLS": b"\x15\x03\x01\x00\x02\x02\x46",
    "no length of a chunk": CHUNKED + b"\r\nhello\r\n",
    "a header without a colon": b"HTTP/1.1 200 OK\r\nwhat is this\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello",
}

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Return a function that runs a coroutine on the event loop under test."""

    def run(main: Awaitable[None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(main, 60))

    return run


class Server:
    """A server that calls `handler` for each request of a connection."""

    def __init__(self, handler: Handler, certificate: ssl.SSLContext | None = None) -> None:
        self._handler = handler
        self._certificate = certificate
        self.connections = 0
        self.requests: list[bytes] = []
        self.left = asyncio.Event()
        """Set when a client has closed its connection."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._certificate)
        scheme = "https" if self._certificate else "http"
        self.url = f"{scheme}://localhost:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                await self._handler(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            writer.close()


def saying(answer: bytes, cut: int | None = None, *, ends: bool) -> Handler:
    """Return a handler that sends this in two pieces and, with `ends`, closes the connection."""

    async def handler(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in (answer[:cut], answer[cut:] if cut else b""):
            writer.write(piece)
            await writer.drain()
            for _ in range(5):  # lets the client read the first piece
                await asyncio.sleep(0)
        if ends:
            writer.close()
            raise ConnectionResetError

    return handler


@cache
def trusting() -> ssl.SSLContext:
    """Return a TLS context that trusts the certificate of the tests' servers."""
    return ssl.create_default_context(cafile=str(PEM))


@contextlib.asynccontextmanager
async def networked() -> AsyncIterator[AsyncioNetwork]:
    network = AsyncioNetwork(trusting())
    try:
        yield network
    finally:
        await network.aclose()


async def fetch(network: httpx.AsyncBaseTransport, url: str, method: str = "GET") -> httpx.Response:
    """Return the complete response."""
    response = await network.handle_async_request(httpx.Request(method, url))
    await response.aread()
    await response.aclose()
    return response


async def fetch_passed(network: AsyncioNetwork, url: str) -> httpx.Response:
    """Return the complete response, whose body has been passed on piece by piece."""
    response = await network.handle_async_request(httpx.Request("GET", url))
    body = b""

    def take(piece: bytes) -> None:
        nonlocal body
        assert piece
        body += piece

    try:
        await body_of(response).pass_to(take, first=60, idle=60)
    finally:
        await response.aclose()
    return httpx.Response(response.status_code, headers=response.headers.raw, stream=httpx.ByteStream(body))


def body_of(response: httpx.Response) -> ResponseBody:
    assert isinstance(response.stream, ResponseBody)
    return response.stream


def parts(response: httpx.Response) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    return response.status_code, [(name.lower(), value) for name, value in response.headers.raw], response.content


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
def test_a_response_is_read_as_httpcore_reads_it_wherever_it_is_split(run: Callable[..., None], answer: bytes) -> None:
    async def main() -> None:
        async with Server(saying(answer, ends=True)) as server, httpx.AsyncHTTPTransport() as httpcore:
            wanted = parts(await fetch(httpcore, server.url))
        for cut in range(1, len(answer) + 1):
            async with Server(saying(answer, cut, ends=True)) as server, networked() as network:
                assert parts(await fetch(network, server.url)) == wanted, cut
                passed = await fetch_passed(network, server.url)
                await passed.aread()
                assert parts(passed) == wanted, cut

    run(main())


@pytest.mark.parametrize("answer", BROKEN.values(), ids=list(BROKEN))
def test_a_broken_response_raises_the_error_that_httpcore_raises(run: Callable[..., None], answer: bytes) -> None:
    async def main() -> None:
        for cut in {None, *range(1, len(answer))}:
            async with Server(saying(answer, cut, ends=True)) as server, networked() as network:
                for connections, fetched in enumerate((fetch, fetch_passed), 1):
                    with pytest.raises(httpx.RemoteProtocolError):
                        await fetched(network, server.url)
                    assert server.connections == connections

    run(main())


def test_each_piece_is_delivered_before_the_next_arrives(run: Callable[..., None]) -> None:
    async def main() -> None:
        more = asyncio.Event()

        async def handler(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(CHUNKED + b"\r\n")
            for _ in range(5):
                await more.wait()
                more.clear()
                writer.write(b"3\r\none\r\n3\r\ntwo\r\n")
            writer.write(b"0\r\n\r\n")

        async with Server(handler) as server, networked() as network:
            response = await network.handle_async_request(httpx.Request("GET", server.url))
            pieces = aiter(response.stream)  # type: ignore[arg-type]
            for _ in range(5):
                more.set()
                assert await anext(pieces) == b"onetwo"
            with pytest.raises(StopAsyncIteration):
                await anext(pieces)
            await response.aclose()

    run(main())


@contextlib.asynccontextmanager
async def answering(*written: bytes) -> AsyncIterator[tuple[httpx.Response, Callable[[], None], list[bytes]]]:
    """Yield a response whose body has begun, a function that lets the server write the next of these bytes, and those
    that are left.
    """
    more, left = asyncio.Event(), list(written)

    async def handler(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"\r\n")
        while left:
            await more.wait()
            more.clear()
            writer.write(left.pop(0))
        await asyncio.sleep(60)

    async with Server(handler) as server, networked() as network:
        response = await network.handle_async_request(httpx.Request("GET", server.url))
        try:
            yield response, more.set, left
        finally:
            await response.aclose()


async def until(true: Callable[[], bool]) -> None:
    """Wait until the condition is true."""
    while not true():  # noqa: ASYNC110  the tests have a time limit
        await asyncio.sleep(0.001)


ONE, TWO, END = b"3\r\none\r\n", b"3\r\ntwo\r\n", b"0\r\n\r\n"


def test_a_piece_is_passed_on_without_waking_the_task(run: Callable[..., None]) -> None:
    async def main() -> None:
        taken: list[tuple[bytes, object]] = []

        def take(piece: bytes) -> None:
            taken.append((piece, asyncio.current_task()))
            write()

        async with answering(ONE + TWO, ONE, TWO + END) as (response, write, _):
            write()
            await body_of(response).pass_to(take, first=60, idle=60)
        assert taken == [(b"onetwo", None), (b"one", None), (b"two", None)]

    run(main())


def test_pieces_wait_for_the_coroutine_of_the_piece_before(run: Callable[..., None]) -> None:
    async def main() -> None:
        taken: list[bytes] = []
        go_on = asyncio.Event()

        def take(piece: bytes) -> Coroutine[Any, Any, None]:
            taken.append(piece)
            return finish(piece)

        async def finish(piece: bytes) -> None:
            assert asyncio.current_task() is task
            await go_on.wait()
            taken.append(piece.upper())

        async with answering(ONE, TWO, ONE, END) as (response, write, left):
            task = asyncio.create_task(body_of(response).pass_to(take, first=60, idle=60))
            for count in (3, 2, 1, 0):
                write()
                await until(lambda count=count: len(left) == count)  # type: ignore[misc]
            assert taken == [b"one"]
            go_on.set()
            await task
        assert taken == [b"one", b"ONE", b"twoone", b"TWOONE"]

    run(main())


@pytest.mark.parametrize("later", [False, True], ids=["at once", "in the coroutine"])
def test_an_error_of_the_receiver_is_raised(run: Callable[..., None], later: bool) -> None:
    async def main() -> None:
        async def fail() -> None:
            raise LookupError("late")

        def take(_: bytes) -> Coroutine[Any, Any, None]:
            if later:
                return fail()
            raise LookupError("early")

        async with answering(ONE) as (response, write, _):
            write()
            with pytest.raises(LookupError, match="late" if later else "early"):
                await body_of(response).pass_to(take, first=60, idle=60)

    run(main())


def test_a_coroutine_that_a_cancelled_task_has_not_begun_is_closed(run: Callable[..., None]) -> None:
    async def main() -> None:
        begun = False

        async def finish() -> None:
            nonlocal begun
            begun = True

        def take(_: bytes) -> Coroutine[Any, Any, None]:
            task.cancel()
            return finish()

        async with answering(ONE) as (response, write, _):
            task = asyncio.create_task(body_of(response).pass_to(take, first=60, idle=60))
            write()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not begun  # and no warning of a coroutine that was never awaited

    run(main())


def test_a_silent_upstream_is_an_error_once_the_time_limit_is_exceeded(run: Callable[..., None]) -> None:
    async def main() -> None:
        async with answering(ONE) as (response, write, _):
            start = asyncio.get_running_loop().time()
            with pytest.raises(httpx.ReadTimeout):
                await body_of(response).pass_to(lambda _: None, first=0.4, idle=60)
            assert asyncio.get_running_loop().time() - start >= 0.39
            assert not body_of(response).begun
        async with answering(ONE) as (response, write, _):
            write()
            with pytest.raises(httpx.ReadTimeout):
                await body_of(response).pass_to(lambda _: None, first=60, idle=0.4)
            assert body_of(response).begun

    run(main())


def test_a_piece_for_a_cancelled_task_is_not_taken(run: Callable[..., None]) -> None:
    async def main() -> None:
        taken: list[bytes] = []

        def take(piece: bytes) -> None:
            taken.append(piece)

        async with answering(ONE, TWO) as (response, write, _):
            task = asyncio.create_task(body_of(response).pass_to(take, first=60, idle=60))
            write()
            await until(lambda: taken == [b"one"])
            task.cancel()
            connection = body_of(response)._connection
            assert connection is not None
            connection.data_received(TWO)  # in the same iteration
            with pytest.raises(asyncio.CancelledError):
                await task
        assert taken == [b"one"]

    run(main())


@pytest.mark.parametrize("first", [0.0, -1.0])
def test_a_time_limit_that_is_already_exceeded(run: Callable[..., None], first: float) -> None:
    async def main() -> None:
        async with answering(ONE) as (response, _, _):
            with pytest.raises(httpx.ReadTimeout):
                await body_of(response).pass_to(lambda _: None, first=first, idle=60)

    run(main())


def test_data_between_the_pieces_does_not_count_as_unread(run: Callable[..., None]) -> None:
    async def main() -> None:
        extension = b"1;" + b"x" * 90_000
        taken: list[bytes] = []

        def take(piece: bytes) -> None:
            taken.append(piece)
            write()

        pieces = [part for _ in range(6) for part in (extension, b"\r\na\r\n")]
        async with answering(*pieces, END) as (response, write, left):
            task = asyncio.create_task(body_of(response).pass_to(take, first=60, idle=60))
            while left:
                write()
                await asyncio.sleep(0.01)
            await asyncio.wait_for(task, 10)
        assert taken == [b"a"] * 6

    run(main())


def test_a_slow_receiver_is_not_a_silent_upstream(run: Callable[..., None]) -> None:
    async def main() -> None:
        taken: list[bytes] = []

        def take(piece: bytes) -> Coroutine[Any, Any, None]:
            taken.append(piece)
            write()
            return asyncio.sleep(0.5)

        async with answering(ONE, END) as (response, write, _):
            write()
            await body_of(response).pass_to(take, first=0.2, idle=0.2)
        assert taken == [b"one"]

    run(main())


def test_a_connection_serves_several_requests_in_turn(run: Callable[..., None]) -> None:
    async def main() -> None:
        for answer in (SIZED, ANSWERS["chunks"], ANSWERS["no body"], ANSWERS["hints before it"]):
            async with Server(saying(answer, ends=False)) as server, networked() as network:
                for _ in range(4):
                    await fetch(network, server.url)
                assert server.connections == 1
                async with asyncio.TaskGroup() as tasks:  # concurrent requests need separate connections
                    for _ in range(4):
                        tasks.create_task(fetch(network, server.url))
                assert server.connections == 4

    run(main())


@pytest.mark.parametrize(
    ("answer", "method"),
    [
        (SIZED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"), "GET"),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n1", "GET"),
        (SIZED + SIZED, "GET"),
        (SIZED + b"hello", "GET"),
        (SIZED[:-5], "HEAD"),
    ],
    ids=["the server closes it", "HTTP/1.0", "another answer follows", "junk follows", "HEAD"],
)
def test_a_connection_that_cannot_be_kept_alive_is_not_reused(
    run: Callable[..., None], answer: bytes, method: str
) -> None:
    async def main() -> None:
        async with Server(saying(answer, ends=False)) as server, networked() as network:
            for count in (1, 2):
                response = await fetch(network, server.url, method)
                assert response.content == (b"" if method == "HEAD" else answer.split(b"\r\n\r\n")[1][:5])
                assert server.connections == count

    run(main())


def test_a_connection_with_unsolicited_data_is_not_reused(run: Callable[..., None]) -> None:
    async def main() -> None:
        late = asyncio.Event()

        async def handler(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(SIZED)
            if server.connections == 1:
                await late.wait()
                writer.write(SIZED.replace(b"hello", b"WRONG"))

        async with Server(handler) as server, networked() as network:
            assert (await fetch(network, server.url)).content == b"hello"
            late.set()
            await asyncio.wait_for(server.left.wait(), 10)
            assert (await fetch(network, server.url)).content == b"hello"
            assert server.connections == 2

    run(main())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Return the time of the pool, in `seconds`, which a test can change."""
    found = {"seconds": 100.0}
    monkeypatch.setattr(asyncio_network, "monotonic", lambda: found["seconds"])
    return found


def test_a_connection_idle_for_too_long_is_not_reused(run: Callable[..., None], clock: dict[str, float]) -> None:
    async def main() -> None:
        async with Server(saying(SIZED, ends=False)) as server, networked() as network:
            for passed, connections in ((0.0, 1), (4.9, 1), (5.1, 2)):
                clock["seconds"] += passed
                await fetch(network, server.url)
                assert server.connections == connections

    run(main())


def test_connections_that_are_idle_for_too_long_are_closed_though_newer_ones_are_reused(
    run: Callable[..., None], clock: dict[str, float]
) -> None:
    async def main() -> None:
        async with Server(saying(SIZED, ends=False)) as server, networked() as network:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(13):
                    tasks.create_task(fetch(network, server.url))
            assert len(network._open) == server.connections > 1
            for _ in range(3):  # each uses the newest connection
                clock["seconds"] += 4.0
                await fetch(network, server.url)
            await asyncio.sleep(0.01)
            assert len(network._open) == 1

    run(main())


def test_connections_of_a_closed_event_loop_are_not_reused() -> None:
    network = AsyncioNetwork(ssl.create_default_context())

    async def main() -> None:
        async with Server(saying(SIZED, ends=False)) as server:
            await fetch(network, server.url)
            await fetch(network, server.url)
            assert server.connections == 1
            await network.aclose()

    for _ in range(3):
        asyncio.run(main())


def test_tls_with_a_trusted_certificate(run: Callable[..., None]) -> None:
    async def main() -> None:
        certificate = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        certificate.load_cert_chain(PEM)
        async with Server(saying(ANSWERS["chunks"], 40, ends=False), certificate) as server, networked() as network:
            for _ in range(2):
                assert (await fetch(network, server.url)).content == b"data: \xc3\xa9ins\n\nd: 2\n"
            assert server.connections == 1
            strict = AsyncioNetwork(ssl.create_default_context())
            with pytest.raises(httpx.ConnectError, match="self-signed certificate"):
                await fetch(strict, server.url)
            await strict.aclose()

    run(main())


def test_a_slow_reader_does_not_make_the_transport_buffer_everything(run: Callable[..., None]) -> None:
    async def main() -> None:
        written, size = 0, 64 * 1024 * 1024

        async def handler(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal written
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
            while written < size:
                writer.write(bytes(65536))
                await writer.drain()
                written += 65536

        async with Server(handler) as server, networked() as network:
            response = await network.handle_async_request(httpx.Request("GET", server.url))
            before = -1
            while written != before:  # until nothing more can be written
                before = written
                await asyncio.sleep(0.2)
            assert written < size / 2
            read = 0
            async for piece in response.stream:  # type: ignore[union-attr]
                read += len(piece)
            assert read == size
            await response.aclose()

    run(main())


@pytest.mark.parametrize("begun", [False, True], ids=["before the answer", "in its middle"])
def test_cancellation_closes_the_connection(run: Callable[..., None], begun: bool) -> None:
    async def main() -> None:
        reached = asyncio.Event()

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if begun:
                writer.write(SIZED[:-1])
            reached.set()
            await reader.readexactly(1)

        async def ask() -> None:
            response = await network.handle_async_request(httpx.Request("GET", server.url))
            try:
                await response.aread()
            finally:
                await response.aclose()

        async with Server(handler) as server, networked() as network:
            task = asyncio.create_task(ask())
            await reached.wait()
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(server.left.wait(), 10)

    run(main())


def asked(server: Server) -> HttpRequest:
    url = RequestUrl(httpx.URL(server.url))
    return HttpRequest("GET", url, [(b"host", url.host)])


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("before", [0, 1])
def test_a_header_has_to_arrive_in_time(run: Callable[..., None], before: int, begun: bool) -> None:
    async def main() -> None:
        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if len(server.requests) > before:
                if begun:
                    writer.write(b"HTTP/1.1 200 ")
                await reader.read()  # until the client has closed the connection
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

        async with Server(handler) as server, networked() as network:
            for _ in range(before):  # the connection is then reused
                response = await network.send(asked(server), first_byte=60)
                await response.body.pass_to(lambda _: None, first=60, idle=60)
                await response.body.aclose()
            with pytest.raises(HeaderTimeout):
                await network.send(asked(server), first_byte=0.05)
            await server.left.wait()
            assert (len(server.requests), server.connections) == (before + 1, 1)  # it was not sent again

    run(main())


@pytest.mark.parametrize("dies", [False, True])
def test_a_request_that_fails_before_its_header_is_not_kept_in_memory(run: Callable[..., None], dies: bool) -> None:
    async def main() -> None:
        async def handler(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            if dies:
                raise ConnectionResetError
            await reader.read()

        async with Server(handler) as server, networked() as network:
            request = asked(server)
            kept = weakref.ref(request)
            gc.collect()
            gc.disable()
            try:
                with contextlib.suppress(httpx.TransportError):
                    await network.send(request, first_byte=60 if dies else 0.05)
                del request
                await asyncio.sleep(0)
                assert kept() is None
            finally:
                gc.enable()

    run(main())


def test_a_connection_has_to_open_before_the_header_is_due(run: Callable[..., None]) -> None:
    async def main() -> None:
        async with Server(saying(b"", ends=True)) as server, networked() as network:
            with pytest.raises(HeaderTimeout):
                await network.send(asked(server), connect=60, first_byte=0)
            with pytest.raises(httpx.ConnectTimeout):
                await network.send(asked(server), connect=0, first_byte=60)
            assert server.requests == []

    run(main())


def test_an_endless_header_is_an_error(run: Callable[..., None]) -> None:
    async def main() -> None:
        async def handler(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\n")
            for number in range(100_000):
                writer.write(b"x-%d: %b\r\n" % (number, b"y" * 100))
                await writer.drain()

        async with Server(handler) as server, networked() as network:
            with pytest.raises(httpx.RemoteProtocolError, match="response header is too large"):
                await fetch(network, server.url)

    run(main())


def test_a_request_is_written_verbatim(run: Callable[..., None]) -> None:
    async def main() -> None:
        async with Server(saying(SIZED, ends=False)) as server, networked() as network:
            headers = [(b"host", b"models"), (b"X-Odd", b"\xe9"), (b"content-length", b"0")]
            request = httpx.Request("POST", f"{server.url}/v1/a%20b?q=%C3%A9", headers=headers)
            await (await network.handle_async_request(request)).aclose()
            begin = b"POST /v1/a%20b?q=%C3%A9 HTTP/1.1\r\nhost: models\r\nX-Odd: \xe9\r\ncontent-length: 0\r\n\r\n"
            assert server.requests == [begin]

    run(main())


@pytest.mark.parametrize("header", [(b"a b", b"1"), (b"", b"1"), (b"a", b"1\r\nb: 2"), (b"a", b"\0")])
def test_an_invalid_header_is_not_sent(header: tuple[bytes, bytes]) -> None:
    async def main() -> None:
        async with Server(saying(SIZED, ends=False)) as server, networked() as network:
            request = httpx.Request("GET", server.url, headers=[(b"host", b"models"), header])
            with pytest.raises(httpx.LocalProtocolError):
                await network.handle_async_request(request)
            assert server.connections == 0

    asyncio.run(main())
