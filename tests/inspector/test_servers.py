"""The inspector over real sockets, under both servers, and as a command."""

import json
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.forked import Forked
from support.inspected import CALL, TOOLS, model
from support.servers import DEADLINE, ROOT, hypercorn_server, uvicorn_server

from streamtool.cli import main
from streamtool.proxy import Proxy

BODY = {"model": "m", "stream": True, "tools": TOOLS, "messages": [{"role": "user", "content": "What is the weather?"}]}


def got(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=DEADLINE) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize("server", [uvicorn_server, hypercorn_server], ids=["uvicorn", "hypercorn"])
def test_a_watching_client_sees_an_exchange_begin_and_end(server):
    proxy = Proxy(apps={"sample": model(f"Let me look.\n{CALL}")}, inspect=True, contents=True)
    with server(proxy) as served:
        url = f"http://127.0.0.1:{served.port}"
        with httpx.stream("GET", f"{url}/inspect/events", timeout=DEADLINE) as watched:
            lines = (line for line in watched.iter_lines() if line.startswith("data: "))
            assert json.loads(next(lines)[6:])["exchanges"] == []
            httpx.post(f"{url}/v1/chat/completions", json=BODY)
            seen = ""
            while seen != "calls":
                seen = json.loads(next(lines)[6:])["exchanges"][0]["outcome"]
        (reply,) = got(f"{url}/inspect/exchanges/1")["replies"]
        assert reply["text"] == f"Let me look.\n{CALL}"


@contextmanager
def command(*arguments: str) -> Iterator[str]:
    """Run a command that serves the page, and yield the URL that it prints."""
    process = Forked([*arguments], {"PATH": "/usr/bin:/bin", "BROWSER": "true"})
    try:
        line = process.stdout.readline()
        assert line.startswith("the inspector is at http://127.0.0.1:"), line
        yield line.split()[4]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


@pytest.mark.anyio
async def test_a_command_shows_recordings(tmp_path):
    from support.inspected import ask, inspected

    app = inspected(model(f"Let me look.\n{CALL}", "It rains."), recordings=str(tmp_path))
    await ask(app)
    await ask(app)
    with (tmp_path / "zz.jsonl").open("w") as broken:  # a recording of a killed process
        broken.write(next(tmp_path.glob("req_*.jsonl")).read_text()[:-40])
    with command("inspect", str(tmp_path), "--no-browser") as url:
        told = got(url + "/exchanges")["exchanges"]
        assert sorted(one["outcome"] for one in told) == ["calls", "cut", "text"]
        texts = {got(f"{url}/exchanges/{one['id']}")["replies"][0]["text"] for one in told}
        assert texts == {f"Let me look.\n{CALL}", "It rains."}
        assert got(url.removesuffix("/inspect") + "/inspect/formats")["formats"]
        (tmp_path / "new.jsonl").write_text(next(tmp_path.glob("req_*.jsonl")).read_text())
        assert len(got(url + "/exchanges")["exchanges"]) == 4, "recordings added later are found too"


def test_a_command_shows_the_parse_of_a_text(tmp_path: Path):
    reply, tools = tmp_path / "reply.txt", tmp_path / "tools.json"
    reply.write_text(CALL)
    tools.write_text(json.dumps(TOOLS))
    with command("parse", str(reply), "--tools", str(tools), "--formats", "tool_call", "--delta", "7", "--page") as url:
        found = got(url.removesuffix("#/try") + "/example")
    assert (found["text"], found["formats"], found["cut"]) == (CALL, ["tool_call"], 7)
    assert list(found["tools"]) == ["get_weather"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("inspect", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
        (("inspect", "README.md"), "is not a recording"),
        (("inspect", "docs"), "contains no recordings"),
        (("parse", "README.md", "--page", "--json"), "--page shows a single reply"),
    ],
)
def test_invalid_input_is_an_error_message(arguments, sentence, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main([*arguments]) == 2
    assert sentence in capsys.readouterr().err
