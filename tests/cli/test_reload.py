"""SIGHUP and `streamtool reload`: new requests use the new settings, open ones end with the old ones.

Real processes and signals, under both servers, with one worker and with two; the official SDKs are the clients.
"""

import os
import signal
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import anyio
import httpx
import httpx2
import openai
import pytest
from support.dialects import chat
from support.forked import Forked
from support.servers import Process, Served, uvicorn_server, wait_for
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from streamtool.cli.reloading import ReloadingProxy
from streamtool.cli.serve import Reloads, ServeFlags
from streamtool.core.errors import SettingsError
from streamtool.settings import Settings, check, check_reload

TOOL: Any = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
READ = "the settings were reloaded"


class Upstream:
    """An upstream that answers with its name, and a call once it is released."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = 0
        self.released = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        first, *rest = chat([self.name, CALL], "stop")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": first + rest[0], "more_body": True})
        self.asked += 1
        while b"waits" in body and not self.released.is_set():  # noqa: ASYNC110  another thread sets it
            await anyio.sleep(0.005)
        await send({"type": "http.response.body", "body": b"".join(rest[1:])})


@pytest.fixture
def upstreams() -> Iterator[tuple[Upstream, Upstream, Served, Served]]:
    first, second = Upstream("first"), Upstream("second")
    with uvicorn_server(first) as one, uvicorn_server(second) as two:
        try:
            yield first, second, one, two
        finally:
            first.released.set()


def settings(url: str, more: str = "") -> str:
    return f'chat_template = "none"\n{more}\n[upstream.u]\nurl = "{url}"\n'


def said(url: str, model: str) -> tuple[str, int]:
    """Return the text and the number of calls of a stream that the openai client reads."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, http_client=httpx.Client(trust_env=False))
    with client:
        stream = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Hi"}], tools=[TOOL], stream=True
        )
        text, calls = "", 0
        for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                calls += sum(bool(call.function and call.function.name) for call in choice.delta.tool_calls or ())
    return text, calls


def said_to_anthropic(url: str, model: str) -> tuple[str, int]:
    client = anthropic.Anthropic(base_url=url, api_key="x", max_retries=0, http_client=httpx2.Client(trust_env=False))
    tool: Any = {"name": "ping", "input_schema": {"type": "object", "properties": {}}}
    with (
        client,
        client.messages.stream(
            model=model, max_tokens=99, messages=[{"role": "user", "content": "Hi"}], tools=[tool]
        ) as stream,
    ):
        message = stream.get_final_message()
    text = "".join(block.text for block in message.content if block.type == "text")
    return text, sum(block.type == "tool_use" for block in message.content)


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def changed(folder: Path, text: str, process: Process, workers: int) -> None:
    """Write the settings, and wait until all workers have read them."""
    (folder / "settings.toml").write_text(text)
    before = process.log.count(READ)
    process.stop(signal.SIGHUP)
    wait_for(lambda: process.log.count(READ) == before + workers, "the settings are read", 20)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_open_requests_keep_the_old_settings(
    tmp_path: Path, upstreams: tuple[Upstream, Upstream, Served, Served], server: str, workers: int
):
    first, _, one, two = upstreams
    with ThreadPoolExecutor(12) as pool, Process(tmp_path, server, settings(one.url), workers=workers) as process:
        open_ = [pool.submit(say, process.url, "waits") for say in (said, said_to_anthropic) for _ in range(6)]
        wait_for(lambda: first.asked == len(open_), "the streams are open", 20)
        changed(tmp_path, settings(two.url), process, workers)
        assert [said(process.url, "new") for _ in range(6)] == [("second", 1)] * 6
        changed(tmp_path, settings(one.url), process, workers)
        assert [said(process.url, "newer") for _ in range(6)] == [("first", 1)] * 6
        assert not any(one.done() for one in open_)
        first.released.set()
        assert [one.result(20) for one in open_] == [("first", 1)] * len(open_)
        process.stop()
        assert process.code() == 0


def test_invalid_settings_change_nothing(tmp_path: Path, upstreams: tuple[Upstream, Upstream, Served, Served]):
    _, _, one, two = upstreams
    for workers in (1, 2):
        with Process(tmp_path, "uvicorn", settings(one.url), workers=workers) as process:
            (tmp_path / "settings.toml").write_text(settings(two.url, "nonsense = 1"))
            process.stop(signal.SIGHUP)
            wait_for(lambda process=process: "the settings were not reloaded" in process.log, "the log reports it", 20)
            assert "nonsense" in process.log
            assert said(process.url, "any") == ("first", 1)
            (tmp_path / "settings.toml").write_text(settings(one.url))


def test_settings_that_need_a_restart_are_named(tmp_path: Path, upstreams: tuple[Upstream, Upstream, Served, Served]):
    url = upstreams[2].url
    with Process(tmp_path, "uvicorn", settings(url)) as process:
        changed(tmp_path, settings(url, "limits.connections = 7"), process, 1)
        assert "changes to these settings take effect only after a restart: limits.connections" in process.log


@pytest.mark.parametrize("workers", [1, 2])
def test_stored_responses_are_kept(tmp_path: Path, upstreams: tuple[Upstream, Upstream, Served, Served], workers: int):
    _, second, one, two = upstreams
    with Process(tmp_path, "uvicorn", settings(one.url), workers=workers) as process:
        with openai.OpenAI(
            base_url=f"{process.url}/v1", api_key="x", http_client=httpx.Client(trust_env=False)
        ) as client:
            begun = client.responses.create(model="m", input="Remember this")
            changed(tmp_path, settings(two.url), process, workers)
            for _ in range(4):  # on any worker
                more = client.responses.create(model="m", input="And?", previous_response_id=begun.id)
                assert more.output_text == "second" + CALL
        assert second.asked == 4


@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_a_reload_resets_circuits(tmp_path: Path, upstreams: tuple[Upstream, Upstream, Served, Served], server: str):
    text = f"""chat_template = "none"
[upstream.a]
url = "http://127.0.0.1:9"
fallbacks = ["b"]
circuit = {{failures = 1, seconds = 600}}
[upstream.b]
url = "{upstreams[2].url}"
"""
    with Process(tmp_path, server, text) as process:

        def states() -> Any:
            return httpx.get(f"{process.url}/readyz", trust_env=False).json()["upstreams"]

        assert said(process.url, "any") == ("first", 1)
        assert states() == {"a": "failing", "b": "ok"}
        changed(tmp_path, text, process, 1)
        assert states() == {"a": "ok", "b": "ok"}


@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_new_websockets_have_the_new_limit(
    tmp_path: Path, upstreams: tuple[Upstream, Upstream, Served, Served], server: str
):
    text = settings(upstreams[2].url)
    with Process(tmp_path, server, text) as process:
        changed(tmp_path, settings(upstreams[2].url, "limits.body = 1000"), process, 1)

        def code() -> int | None:
            """Return the close code after a long message, or None if the message is read."""
            with connect(f"{process.url.replace('http', 'ws')}/v1/responses", proxy=None) as connection:
                connection.send(" " * 2000)
                try:
                    connection.recv(timeout=20)
                except ConnectionClosedError as closed:
                    return closed.rcvd and closed.rcvd.code
            return None

        wait_for(lambda: code() == 1009, "the limit applies")


def test_the_reload_command(tmp_path: Path, upstreams: tuple[Upstream, Upstream, Served, Served]):
    _, _, one, two = upstreams

    def reload(port: int) -> tuple[int | None, str, str]:
        command = Forked(["reload", "--port", str(port)], {**os.environ})
        out, err = command.communicate()
        return command.returncode, out, err

    with Process(tmp_path, "uvicorn", settings(one.url)) as process:
        (tmp_path / "settings.toml").write_text(settings(two.url))
        code, out, _ = reload(process.port)
        assert (code, out.split()[:3]) == (0, ["asked", "process", str(process.pid)])
        wait_for(lambda: READ in process.log, "the settings are read", 20)
        assert said(process.url, "any") == ("second", 1)
    code, _, err = reload(process.port)
    assert code == 1
    assert f"on 127.0.0.1:{process.port}; use --port for another port" in err


@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_settings_file_that_never_ends_does_not_block_the_server(tmp_path: Path, server: str, workers: int):
    file = tmp_path / "settings.toml"
    with Process(tmp_path, server, settings("sample"), workers=workers) as process:
        file.unlink()
        os.mkfifo(file)
        process.stop(signal.SIGHUP)
        wait_for(lambda: process.log.count(NOT_RELOADED) == 1, "a pipe is refused", 20)
        assert "is not a regular file" in process.log
        file.unlink()
        file.write_text(settings("sample") + "#" * 1024 * 1024)
        process.stop(signal.SIGHUP)
        wait_for(lambda: process.log.count(NOT_RELOADED) == 2, "a large file is refused", 20)
        assert "is larger than 1048576 bytes" in process.log
        changed(tmp_path, settings("sample"), process, workers)
        process.stop()
        assert process.code() == 0


@pytest.mark.parametrize(("server", "workers"), [("uvicorn", 1), ("hypercorn", 1), ("uvicorn", 2)])
def test_a_reload_that_hangs_does_not_block_the_stop(tmp_path: Path, server: str, workers: int):
    """Other files can be pipes, too."""
    phrases = tmp_path / "phrases.toml"
    os.mkfifo(phrases)
    with Process(tmp_path, server, settings("sample"), workers=workers) as process:
        (tmp_path / "settings.toml").write_text(settings("sample", f'phrases = "{phrases}"'))
        process.stop(signal.SIGHUP)
        with phrases.open("w"):  # waits until the reload has opened it, too
            process.stop()
            assert process.code() == 0
            assert "Traceback" not in process.log


def test_the_first_settings_may_come_from_a_pipe(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    child = Forked(["serve", "--port", "0", "--config", str(pipe)], {**os.environ, "STREAMTOOL_LOG": "json"})
    pipe.write_text('log_to = "stdout"\n' + settings("sample"))
    assert "listens on http://127.0.0.1:" in child.stdout.readline()
    child.send_signal(signal.SIGTERM)
    assert child.communicate()[1] == ""


@pytest.mark.parametrize(("field", "value"), [("recordings", "/proc/nope/x"), ("store.redis", "redis://127.0.0.1:1")])
def test_a_replacement_worker_uses_settings_that_work(tmp_path: Path, field: str, value: str):
    """Settings that prevent a proxy from starting are refused for later workers, too."""
    with Process(tmp_path, "uvicorn", settings("sample"), workers=2) as process:
        workers = children(process.pid)
        (tmp_path / "settings.toml").write_text(settings("sample", f'{field} = "{value}"'))
        process.stop(signal.SIGHUP)
        wait_for(lambda: NOT_RELOADED in process.log, "the settings are refused", 20)
        for killed in workers:
            os.kill(killed, signal.SIGKILL)
        wait_for(lambda: process.log.count("starting a replacement") == 2, "the log reports it", 20)
        replies = [said(process.url, "m") for _ in range(6)]  # the port is served by replacements alone
        assert len(replies) == 6
        assert process.log.count("starting a replacement") == 2
        changed(tmp_path, settings("sample"), process, 2)
        process.stop()
        assert process.code() == 0


def test_metrics_can_be_enabled(tmp_path: Path):
    with Process(tmp_path, "uvicorn", settings("sample"), workers=2) as process:
        changed(tmp_path, settings("sample", "metrics = true"), process, 2)
        assert httpx.get(f"{process.url}/metrics", trust_env=False).status_code == 200


KEYED = 'client_keys = {a = "sk-of-a-client"}\n'
NOT_RELOADED = "the settings were not reloaded"
REFUSED: dict[str, tuple[str, str]] = {
    "half-written, without keys": ("[upstream.u]\nurl = URL\n", "client_keys"),
    "half-written, without upstreams": (KEYED, "upstream"),
    "empty": ("", "every setting"),
    "only a comment": ("# empty\n", "every setting"),
    "deeply nested": ("a = " + "[" * 100_000, "nested too deeply"),
    "nested less deeply": ("a = " + "[" * 400 + "]" * 400, "a"),
    "not TOML": ("[upstream", "TOML"),
    "half-written, within a value": (KEYED + "[upstream.u]\nurl = URL\n[limits]\nattempts = 1", "newline"),
    "not text": ("\udcff\udcfe", "UTF-8"),
}
"""Contents of a settings file, and a word of the reason why they are not used."""


@pytest.mark.parametrize(("server", "workers"), [("uvicorn", 1), ("hypercorn", 1), ("uvicorn", 2)])
def test_a_reload_that_would_open_the_server_is_refused(
    tmp_path: Path, upstreams: tuple[Upstream, Upstream, Served, Served], server: str, workers: int
):
    """The server continues with its settings, and still reloads afterwards."""
    _, _, one, two = upstreams
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}

    def status(key: str) -> int:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.post(f"{process.url}/v1/chat/completions", json=body, headers=headers, trust_env=False).status_code

    file = tmp_path / "settings.toml"
    with Process(tmp_path, server, KEYED + settings(one.url), workers=workers) as process:
        for refused, (text, reason) in enumerate(REFUSED.values(), 1):
            file.write_bytes(text.replace("URL", f'"{one.url}"').encode("utf-8", "surrogateescape"))
            process.stop(signal.SIGHUP)
            wait_for(lambda count=refused: process.log.count(NOT_RELOADED) == count, f"{text[:40]!r} is refused", 20)
            # an exchange of the previous round may be logged afterwards
            assert reason in [line for line in process.log.splitlines() if NOT_RELOADED in line][-1]
            assert (status("any"), status("sk-of-a-client")) == (401, 200)
        assert "Traceback" not in process.log
        changed(tmp_path, KEYED + settings(two.url), process, workers)
        assert (status("any"), status("sk-of-a-client")) == (401, 200)
        process.stop()
        assert process.code() == 0


def test_a_reload_reads_flags_variables_and_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "settings.toml"
    monkeypatch.setenv("STREAMTOOL_GRACE", "7")
    flags = ServeFlags(config=str(file), upstream="http://127.0.0.1:9", format="invoke", port=8701)
    file.write_text('retries = 5\ngrace = 3\nformat = "react"')
    reloads = Reloads(flags, flags.settings())
    file.write_text("retries = 6")
    monkeypatch.setenv("STREAMTOOL_GRACE", "8")
    found = reloads.read()
    assert (found.retries, found.grace, found.format, found.port) == (6, 8.0, "invoke", 8701)
    assert found.upstreams["flag"].url == "http://127.0.0.1:9"


def test_a_file_without_a_last_newline_is_reloaded_if_it_had_none(tmp_path: Path):
    file = tmp_path / "settings.toml"
    flags = ServeFlags(config=str(file))
    for first, second, loads in [("1", "5", True), ("1", "5\n", True), ("1\n", "5", False), ("1\n", "5\n", True)]:
        file.write_text(f"retries = {first}")
        reloads = Reloads(flags, flags.settings(), file.read_text())
        file.write_text(f"retries = {second}")
        if loads:
            assert reloads.read().retries == 5
        else:
            with pytest.raises(SettingsError, match="newline"):
                reloads.read()


def test_the_file_that_is_checked_is_the_one_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another file may replace it at any time."""
    file = tmp_path / "settings.toml"
    file.write_text("retries = 1")
    os.mkfifo(tmp_path / "pipe")
    reloads = Reloads(flags := ServeFlags(config=str(file)), flags.settings())
    monkeypatch.setattr(
        stat, "S_ISREG", lambda mode, real=stat.S_ISREG: (tmp_path / "pipe").replace(file) and real(mode)
    )
    assert reloads.read().retries == 1
    monkeypatch.undo()
    with pytest.raises(SettingsError, match="not a regular file"):
        reloads.read()


def test_an_unexpected_error_in_new_settings_changes_nothing():
    def read() -> Settings:
        raise ZeroDivisionError

    async def main() -> None:
        proxy = ReloadingProxy(Settings(), read)
        before = proxy.settings
        await proxy.reload()
        assert proxy.settings is before

    anyio.run(main)


@pytest.mark.parametrize(
    ("before", "after", "listen", "param"),
    [
        ({"insecure": True}, {}, "0.0.0.0:8700", "listen"),
        ({"client_keys": {"a": "k"}}, {"insecure": True}, "0.0.0.0:8700", "client_keys"),
        ({"client_keys": {"a": "k"}}, {}, "127.0.0.1:8700", "client_keys"),
        ({"client_keys": {"a": "k"}}, {"client_keys": {"b": "k"}}, "0.0.0.0:8700", None),
        ({"insecure": True}, {"insecure": True}, "0.0.0.0:8700", None),
        ({}, {"client_keys": {"a": "k"}}, "127.0.0.1:8700", None),
    ],
)
def test_the_check_concerns_the_address_that_the_server_listens_on(
    before: Any, after: Any, listen: str, param: str | None
):
    """The file may not name the address at all while it is being written."""
    upstreams = {"u": {"url": "http://127.0.0.1:9"}}
    given = Settings(upstreams=upstreams, **before), Settings(upstreams=upstreams, **after)  # type: ignore[dict-item]
    if param is None:
        assert check_reload(*given, unset=None, listen=listen) is given[1]
    else:
        with pytest.raises(SettingsError) as error:
            check_reload(*given, unset=None, listen=listen)
        assert error.value.param == param


@pytest.mark.parametrize("options", [{"client_keys": {"a": "k"}}, {"listen": "0.0.0.0:1", "insecure": True}])
def test_the_sample_model_serves_clients_only_if_it_is_asked_for(options: Any):
    with pytest.raises(SettingsError, match="--upstream sample"):
        check(Settings(**options))
    check(Settings(upstreams={"s": {"url": "sample"}}, **options))  # type: ignore[dict-item]
    check(Settings())
