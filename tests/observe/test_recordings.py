"""Recordings of exchanges: their contents, permissions, limits and replay."""

import errno
import io
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from support.clients import Model, Task
from support.dialects import PATHS, Ask, read, said, write
from support.native_upstreams import LEAK, native
from support.scripted_replies import ANNOUNCED, CALL, DENIED, TOOLS, UNFIT, UNKNOWN
from support.servers import uvicorn_server, wait_for

from streamtool.cli import main
from streamtool.middleware import ToolMiddleware
from streamtool.observe.lines import strip_secrets
from streamtool.observe.recordings import safe_file_name
from streamtool.settings import Settings
from streamtool.testing import Hang, Script, ScriptedUpstream, stream_asgi

KEY = "sk-live-4f9d8e7c"
ASK = Ask((("system", "Be brief."), ("user", "Ping it.")), TOOLS)
HEADERS = [(b"content-type", b"application/json"), (b"authorization", f"Bearer {KEY}".encode())]

both = pytest.mark.anyio
ways = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "made" / "traces"


@pytest.fixture
def replay(capsys, monkeypatch):
    """Return a function that runs `streamtool parse --replay`: exit code, standard output, standard error."""
    for name in [name for name in os.environ if name.startswith("STREAMTOOL_")]:
        monkeypatch.delenv(name)

    def run(path: Path | str, *flags: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        code = main(["parse", "--replay", str(path), *flags])
        return (code, *capsys.readouterr())

    return run


async def talk(app: Any, ask: Ask = ASK, client: str = "chat", **fields: Any) -> Any:
    body = json.dumps({**write(client, ask), **fields}).encode()
    async with stream_asgi(app, PATHS[client], body=body, headers=HEADERS) as reply:
        data = await reply.body()
        await reply.finished.wait()
    return read(client, data, stream=ask.stream)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def kinds(path: Path) -> list[str]:
    """Return the types of the lines, with consecutive repetitions removed."""
    found = [line["type"] for line in lines(path)]
    return [kind for i, kind in enumerate(found) if i == 0 or kind != found[i - 1]]


# --- live, over a socket, with the official clients


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Model, Path]]:
    """Run a recording app over a loopback socket."""
    folder, model = tmp_path_factory.mktemp("live"), Model()
    app = ToolMiddleware(model.app, app_protocol="chat", settings=Settings(recordings=str(folder)))
    with uvicorn_server(app) as served:
        yield served.url, model, folder


def recorded(folder: Path, task: Task) -> Path:
    """Return the recording of the task's only request."""

    def found() -> list[Path]:
        return [path for path in files(folder) if f'"model":"{task.model}"' in path.read_text()]

    wait_for(lambda: [path for path in found() if '{"type":"record"' in path.read_text()], "a recording")
    (path,) = found()
    return path


@ways
def test_an_exchange_with_the_openai_client_replays(live, stream: bool, replay):
    url, model, folder = live
    task = model.task("two")
    offered = [{"type": "function", "function": {"name": o.name, "parameters": o.parameters}} for o in task.offers]
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        asked: Any = {"model": task.model, "messages": [{"role": "user", "content": task.question}], "tools": offered}
        if stream:
            assert list(client.chat.completions.create(**asked, stream=True))
        else:
            assert client.chat.completions.create(**asked).choices[0].message.tool_calls
    path = recorded(folder, task)
    code, out, err = replay(path, "--json")
    assert (code, err) == (0, "")
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["name"] for event in events if event["type"] == "call_start"] == [call.name for call in task.calls]
    assert "".join(event["text"] for event in events if event["type"] == "text_delta").strip() == task.opening
    assert events[-1] == {"type": "replayed", "same": True, "pieces": events[-1]["pieces"], "cut": False}
    assert KEY not in path.read_text()


@ways
def test_an_exchange_with_the_anthropic_client_replays(live, stream: bool, replay):
    url, model, folder = live
    task = model.task("one")
    offered: Any = [{"name": offer.name, "input_schema": offer.parameters} for offer in task.offers]
    asked: Any = {"model": task.model, "max_tokens": 100, "tools": offered}
    asked["messages"] = [{"role": "user", "content": task.question}]
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        if stream:
            with client.messages.stream(**asked) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(**asked)
    assert message.stop_reason == "tool_use"
    path = recorded(folder, task)
    assert replay(path)[0] == 0
    assert lines(path)[0]["protocol"] == "messages"
    assert KEY not in path.read_text()


def test_an_exchange_whose_client_disconnected_replays(replay, folder):
    upstream = ScriptedUpstream(Script((*said("chat", f"Well.\n{CALL[:60]}").steps[:-3], Hang())))
    app = ToolMiddleware(upstream, settings=Settings(recordings=str(folder)))
    with uvicorn_server(app) as served, openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY) as client:
        body = write("chat", ASK)
        with client.chat.completions.create(**body) as stream:
            for chunk in stream:
                if chunk.choices[0].delta.tool_calls:
                    break
        wait_for(lambda: files(folder) and '"outcome":"left"' in files(folder)[0].read_text(), "the recording ends")
    (path,) = files(folder)
    assert "close" not in kinds(path)
    code, out, _ = replay(path)
    assert code == 0
    assert "the same events as in the recording (" in out


# --- contents of a recording


@both
async def test_a_recording_begins_with_the_request_and_ends_with_the_record(folder):
    app = ToolMiddleware(ScriptedUpstream(said("chat", f"So.\n{CALL}")), settings=Settings(recordings=str(folder)))
    await talk(app)
    (path,) = files(folder)
    assert kinds(path)[:3] == ["exchange", "attempt", "answer"]
    assert kinds(path)[-1] == "record"
    first, last = lines(path)[0], lines(path)[-1]
    assert first["request"]["messages"][1] == {"role": "user", "content": "Ping it."}
    assert (first["trace"], first["protocol"], first["upstream_protocol"]) == (1, "chat", "chat")
    assert first["request_id"] == last["request_id"] == path.stem
    assert (last["outcome"], last["calls"], last["seconds"] > 0) == ("calls", 1, True)
    made_with = next(line["made_with"] for line in lines(path) if line["type"] == "parser")
    assert sorted(made_with["tools"]) == ["ping", "read_file"]
    assert made_with["limits"] == {"held": 262144, "arguments": 16777216, "depth": 128, "name": 256}
    fed = [line for line in lines(path) if line["type"] == "text"]
    assert "".join(line["text"] for line in fed) == f"So.\n{CALL}"
    assert {"text", "candidate", "call"} <= {line["state"] for line in fed}
    assert [line["seconds"] for line in fed] == sorted(line["seconds"] for line in fed)
    sent = [event for line in lines(path) if line["type"] == "sent" for event in line["events"]]
    assert [event["name"] for event in sent if event["type"] == "call_start"] == ["ping"]
    assert sent[-1]["type"] == "end"


@both
@ways
@pytest.mark.parametrize(
    "case",
    [
        (ASK, (DENIED, CALL), {}),
        (ASK, (ANNOUNCED, CALL), {}),
        (ASK, (UNKNOWN,), {}),
        (ASK, (UNKNOWN,), {"unknown_tools": "deliver"}),
        (ASK, (UNFIT, CALL), {"arguments": "complete"}),
        (Ask(ASK.turns, TOOLS, choice="required"), ("No.", CALL), {}),
        (ASK, (f"<think>{CALL}</think>\n```json\n{CALL}\n```",), {"calls_in_reasoning": True, "in_fences": "calls"}),
        (ASK, (CALL,), {"formats": ("invoke",), "format": "tool_call"}),
        (Ask((("user", f"What is {CALL}?"),), TOOLS), (f"It is {CALL}, and {LEAK}.",), {}),
        (ASK, ('So.\n<tool_call>{"name": ping, "arguments": 1}</tool_call>', CALL), {"malformed": "retry"}),
    ],
    ids=[
        *("denied", "announced", "unknown", "delivered", "schema", "required", "fences", "formats", "quoted"),
        "malformed",
    ],
)
async def test_exchanges_with_retries_and_options_replay(folder, case, stream, replay):
    ask, replies, settings = case
    upstream = ScriptedUpstream(*(said("chat", reply) for reply in replies))
    app = ToolMiddleware(upstream, settings=Settings(recordings=str(folder), **settings))
    await talk(app, Ask(ask.turns, ask.tools, stream=stream, choice=ask.choice))
    (path,) = files(folder)
    attempts = [line for line in lines(path) if line["type"] == "attempt"]
    assert [attempt["body"]["messages"] for attempt in attempts] == [r.json["messages"] for r in upstream.requests]
    code, out, _ = replay(path)
    assert code == 0, out[-3000:]
    assert out.count("attempt ") == len(upstream.requests)
    assert "the same events as in the recording (" in out


@both
async def test_a_call_that_begins_in_the_prompt_replays(folder, replay):
    upstream = ScriptedUpstream(said("completions", CALL.partition('"arguments":')[2]))
    app = ToolMiddleware(
        upstream, app_protocol="completions", settings=Settings(recordings=str(folder), format="tool_call")
    )
    got = await talk(app, Ask(ASK.turns, TOOLS[:1], choice="required"))
    assert got.parts == (("ping", '{"x": 1}'),)
    (path,) = files(folder)
    (made,) = [line for line in lines(path) if line["type"] == "parser"]
    assert made["made_with"]["prefix"].startswith("<tool_call>")
    assert replay(path)[0] == 0


@both
async def test_native_calls_and_two_choices_replay(folder, replay):
    settings = Settings(recordings=str(folder))
    await talk(ToolMiddleware(ScriptedUpstream(native(("ping", "{}"), text=LEAK)), settings=settings, mode="rescue"))
    two = ToolMiddleware(ScriptedUpstream(said("chat", LEAK, n=2)), settings=settings)
    await talk(two, Ask(ASK.turns, TOOLS, n=2))
    assert len(files(folder)) == 2
    made: list[list[bool]] = []
    for path in files(folder):
        assert replay(path)[0] == 0
        made.append(["made_with" in line for line in lines(path) if line["type"] == "parser"])
    assert sorted(made) == [[True], [True, False]]  # one parser for each choice; equal options are written once


@both
async def test_only_exchanges_with_tools_are_recorded(folder):
    settings = Settings(recordings=str(folder))
    await talk(ToolMiddleware(ScriptedUpstream(said("chat", "x")), settings=settings), Ask(ASK.turns))
    await talk(
        ToolMiddleware(ScriptedUpstream(said("ollama", "x")), settings=settings, app_protocol="ollama"), Ask(ASK.turns)
    )
    assert files(folder) == []


@both
async def test_headers_and_keys_in_the_request_are_not_recorded(folder):
    app = ToolMiddleware(ScriptedUpstream(said("messages", CALL)), settings=Settings(recordings=str(folder)))
    servers = [{"type": "url", "url": "https://mcp.test", "authorization_token": KEY}]
    await talk(app, ASK, "messages", mcp_servers=servers)
    (path,) = files(folder)
    assert KEY not in path.read_text()
    assert lines(path)[0]["request"]["mcp_servers"][0]["url"] == "https://mcp.test"


def test_fields_that_contain_keys_are_redacted():
    schema = {"properties": {"token": {"type": "string"}, "headers": {"type": ["object"]}}}
    tool = {"type": "mcp", "headers": {"X-Key": "k"}, "authorization": "k", "input_schema": schema}
    assert strip_secrets({"tools": [tool], "API_KEY": "k", "max_tokens": 1}) == {
        "tools": [{"type": "mcp", "headers": "(left out)", "authorization": "(left out)", "input_schema": schema}],
        "API_KEY": "(left out)",
        "max_tokens": 1,
    }


# --- files


@both
async def test_only_the_owner_can_read_a_recording(folder):
    old = os.umask(0)
    try:
        app = ToolMiddleware(ScriptedUpstream(said("chat", CALL)), settings=Settings(recordings=str(folder)))
        await talk(app)
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(files(folder)[0].stat().st_mode) == 0o600


class Named:
    """An upstream that gives its replies a request id."""

    def __init__(self, request_id: str) -> None:
        self.id = request_id
        self.app = ScriptedUpstream(said("chat", CALL))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def named(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", self.id.encode())]
            await send(message)

        await self.app(scope, receive, named)


@both
@pytest.mark.parametrize(
    ("request_id", "name"),
    [
        ("req_up-1", "req_up-1.jsonl"),
        ("../../etc/passwd", "______etc_passwd.jsonl"),
        ("/absolute", "_absolute.jsonl"),
        (".", "_.jsonl"),
        ("a\x00b\nc é", "a_b_c___.jsonl"),
        ("x" * 5000, "x" * 100 + ".jsonl"),
    ],
    ids=["plain", "climbing", "absolute", "dot", "odd", "long"],
)
async def test_the_request_id_of_the_upstream_names_the_file_safely(folder, request_id, name):
    app = ToolMiddleware(Named(request_id), settings=Settings(recordings=str(folder)))
    await talk(app)
    assert [path.name for path in files(folder)] == [name]
    assert [path.name for path in folder.parent.iterdir()] == ["traces"]


@both
async def test_a_repeated_id_overwrites_nothing(folder):
    app = ToolMiddleware(Named("same"), settings=Settings(recordings=str(folder)))
    for _ in range(3):
        await talk(app)
    names = [path.name for path in files(folder)]
    assert names[-1] == "same.jsonl"
    assert all(re.fullmatch(r"req_[0-9a-f]{24}\.jsonl", name) for name in names[:-1])
    assert len(names) == 3


def test_a_file_name_is_never_empty():
    assert safe_file_name("") == "_"


@both
async def test_the_log_names_the_recording(folder, caplog):
    caplog.set_level("INFO", logger="streamtool")
    await talk(ToolMiddleware(ScriptedUpstream(said("chat", CALL)), settings=Settings(recordings=str(folder))))
    (record,) = [record for record in caplog.records if record.name == "streamtool.exchange"]
    assert record.streamtool["trace"] == str(files(folder)[0])


@both
async def test_a_full_disk_ends_the_recording_but_not_the_exchange(folder, monkeypatch, caplog):
    app = ToolMiddleware(
        ScriptedUpstream(said("chat", "So. " * 1000 + CALL)), settings=Settings(recordings=str(folder))
    )
    real = os.write
    written: list[int] = []

    def fill(descriptor: int, data: bytes) -> int:
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(descriptor)
        return real(descriptor, data[:1000])

    monkeypatch.setattr("streamtool.observe.recordings.os.write", fill)
    got = await talk(app)
    assert got.reason == "calls"
    assert files(folder)[0].stat().st_size == 1000
    assert [r.getMessage() for r in caplog.records if "abandoned" in r.getMessage()] == [
        f"the recording of an exchange in {files(folder)[0]} was abandoned: No space left on device"
    ]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(written[0])


@both
async def test_a_missing_directory_does_not_affect_the_exchange(folder, caplog):
    app = ToolMiddleware(ScriptedUpstream(said("chat", CALL)), settings=Settings(recordings=str(folder)))
    folder.rmdir()
    assert (await talk(app)).reason == "calls"
    assert "was abandoned: No such file or directory" in caplog.text


@both
async def test_a_recording_is_truncated_at_its_size_limit_and_marked_incomplete(folder, replay):
    settings = Settings(recordings=str(folder), recording_size=20_000)
    got = await talk(ToolMiddleware(ScriptedUpstream(said("chat", "So. " * 2000 + CALL)), settings=settings))
    assert got.reason == "calls"
    (path,) = files(folder)
    assert 15_000 < path.stat().st_size <= 20_000
    assert kinds(path)[-1] == "cut"
    code, out, _ = replay(path)
    assert code == 0
    assert "the same events as in the recording, which is incomplete (" in out


@both
async def test_a_request_that_is_too_large_is_left_out_of_the_recording(folder):
    settings = Settings(recordings=str(folder), recording_size=20_000)
    ask = Ask((("user", "x" * 15_000),), TOOLS)
    await talk(ToolMiddleware(ScriptedUpstream(said("chat", CALL)), settings=settings), ask)
    first = lines(files(folder)[0])[0]
    assert (first["request"], first["left_out"]) == (None, "request")
    assert kinds(files(folder)[0])[-1] == "record"


@both
async def test_the_oldest_recordings_are_deleted(folder):
    app = ToolMiddleware(
        ScriptedUpstream(said("chat", CALL)), settings=Settings(recordings=str(folder), recording_files=2)
    )
    folder.joinpath("mine.jsonl").write_text("")
    for content in ("one", "two", "three"):
        await talk(app, Ask((("user", content),), TOOLS))
    kept = [lines(path)[0]["request"]["messages"][0]["content"] for path in files(folder) if path.name != "mine.jsonl"]
    assert sorted(kept) == ["three", "two"]
    assert folder.joinpath("mine.jsonl").exists()


# --- replaying


@pytest.fixture
def one(folder) -> Path:
    """Return a recording."""
    import anyio

    app = ToolMiddleware(ScriptedUpstream(said("chat", f"So.\n{CALL}")), settings=Settings(recordings=str(folder)))
    anyio.run(talk, app)
    return files(folder)[0]


def test_differing_events_are_shown_and_exit_with_1(one, replay):
    one.write_text(one.read_text().replace('"events":[{"type":"text_delta","text":"So."}]', '"events":[]'))
    code, out, _ = replay(one)
    assert code == 1
    at = next(i for i, line in enumerate(lines(one), 1) if line["type"] == "text")
    assert f"first at line {at}:\n  recorded  []\n  now       [" in out
    code, out, _ = replay(one, "--json")
    last = json.loads(out.splitlines()[-1])
    assert (code, last["same"]) == (1, False)
    assert last["difference"] == {"line": at, "recorded": [], "now": [{"type": "text_delta", "text": "So."}]}


def test_a_recording_truncated_by_a_crash_replays_as_far_as_possible(one, replay):
    one.write_bytes(one.read_bytes()[:-1500])
    code, out, _ = replay(one)
    assert code == 0
    assert "which is incomplete" in out


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not a recording of an exchange"),
        ("So.\n", "line 1: invalid JSON"),
        ("[]\n", "line 1: not a line of a recording"),
        ('{"type":"text"}\n', "is not a recording that this version can read"),
        ('{"type":"exchange","trace":2}\n', "is not a recording that this version can read"),
        ('{"type":"exchange","trace":1}\n{"type":"text","parser":0}\n', "line 2: not a line of a recording"),
        (
            '{"type":"exchange","trace":1}\n{"type":"parser","parser":0,"made_with":{}}\n',
            "line 2: not a line of a recording",
        ),
    ],
)
def test_a_file_that_is_not_a_recording_is_an_error(tmp_path, replay, text, sentence):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    code, _, err = replay(path)
    assert code == 2
    assert sentence in err


def test_replay_excludes_other_options(one, replay):
    code, _, err = replay(one, "--delta", "3")
    assert (code, err.count("--replay")) == (2, 1)
