"""The command line for a user or a script: output, messages, exit codes."""

import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
import typer
from rich.cells import cell_len
from support import dialects
from support.forked import Forked
from support.sweeps import each

from statemachine import FORMATS, OPT_IN, Call, parse, write
from streamtool.cli import main
from streamtool.cli.app import app
from streamtool.cli.demo import TOOLS as DEMO_TOOLS
from streamtool.cli.demo_board import Shadow
from streamtool.cli.help import GROUPS
from streamtool.cli.prompt import guess_protocol
from streamtool.models.families import is_teachable

ROOT = Path(__file__).resolve().parent.parent.parent
COMMANDS = ("demo", "serve", "probe", "run", "sessions", "parse", "prompt", "formats", "recipe", "bench", "completion")
TOOLS = [{"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}]
REQUEST = {
    "model": "m",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Ping it."}],
    "tools": TOOLS,
}


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in [name for name in os.environ if name.startswith("STREAMTOOL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def run(capsys, monkeypatch):
    """Return a function that runs a command line in this process: exit code, standard output, standard error."""

    def call(*argv: str, given: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        code = main(argv)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def process(*argv: str, code: str | None = None, **options: object) -> subprocess.Popen[str]:
    """Start a command line in a separate process."""
    start = ["-m", "streamtool", *argv] if code is None else ["-c", code, *argv]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "encoding": "utf-8"} | options
    return subprocess.Popen([sys.executable, *start], env=env, **pipes)


def forked(*argv: str) -> Forked:
    """Start a command line in a separate process, forked from one that has imported it."""
    return Forked([*argv], {**os.environ, "PYTHONPATH": str(ROOT)})


def events(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


# --- general ---------------------------------------------------------------------------------------------------------


def test_help_lists_the_commands_and_exit_codes(run):
    code, out, _ = run("--help")
    assert code == 0
    for word in (*COMMANDS, "Exit codes", "130 interrupted"):
        assert word in out


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_has_examples(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"  streamtool {command}" in out.partition("Examples:")[2]
    assert not [line for line in out.splitlines() if len(line) > 80]
    assert not re.search(r"<str>|\[x[<>]=", out)


def test_every_command_is_in_one_group_of_the_help(run):
    _, out, _ = run("--help")
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(typer.main.get_command(app).commands)
    assert [line.rstrip(":") for line in out.splitlines() if line.rstrip(":") in GROUPS] == list(GROUPS)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["serve", "--workers", "0"], "--workers: expected a number that is at least 1, found '0'"),
        (["serve", "--port=abc"], "--port: expected a whole number, found 'abc'"),
        (["serve", "--port", "70000"], "--port: expected a number that is at most 65535, found '70000'"),
        (["demo", "--delay", "x"], "--delay: expected a number, found 'x'"),
    ],
)
def test_invalid_values_are_named_in_our_words(run, argv, sentence):
    assert run(*argv) == (2, "", f"streamtool: {sentence}\n")


@pytest.mark.parametrize("content", ["1 / 0", "raise SystemExit(3)", "import nothing_of_this_name", "x ="])
def test_a_tool_whose_module_does_not_load_is_reported(run, tmp_path, monkeypatch, content):
    (tmp_path / "unloadable.py").write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "unloadable", raising=False)
    code, _, err = run("run", "task", "--tool", "unloadable:f", "--yes")
    assert code == 2
    assert err.startswith("streamtool: --tool: cannot load unloadable:f: ")
    assert "Traceback" not in err


def test_a_reader_that_stops_is_no_failure_even_with_colors(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    child = process("formats")
    child.stdout.close()
    _, err = child.communicate(timeout=20)
    assert (child.returncode, err) == (0, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(run, shell, monkeypatch):
    code, out, _ = run("completion", shell)
    assert code == 0
    assert "_STREAMTOOL_COMPLETE" in out
    for name, value in {"COMP_WORDS": "streamtool se", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "streamtool se",
                        "_TYPER_COMPLETE_FISH_ACTION": "get-args", "_STREAMTOOL_COMPLETE": f"complete_{shell}"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    _, out, _ = run()
    assert re.findall(r"\b(serve|sessions|demo)\b(?= |\t|\"|$)", out, re.MULTILINE)[:2] == ["serve", "sessions"]


def test_another_shell_is_refused(run):
    code, _, err = run("completion", "tcsh")
    assert (code, err) == (2, "streamtool: SHELL: expected bash, zsh, fish, found 'tcsh'\n")


def test_the_progress_of_a_probe_leaves_no_line(run, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    code, _, err = run("probe", "sample")
    assert code == 0
    assert "\n" not in err
    assert "probing" in err
    assert err.endswith("\r\x1b[K")


@pytest.mark.parametrize(
    "argv", [["nope"], ["parse", "--nope"], ["parse", "--delta", "0"], ["prompt"], ["serve", "--port", "x"]]
)
def test_wrong_usage_exits_with_2(run, argv):
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert err.startswith(("streamtool: --", "Usage: "))


def test_the_version_is_printed(run):
    code, out, _ = run("--version")
    assert code == 0
    assert re.fullmatch(r"streamtool \S+\n", out)


def test_python_m_streamtool_runs_the_command():
    out, err = process("formats").communicate(timeout=20)
    assert out.startswith("apertus ")
    assert not err


@pytest.mark.parametrize(("missing", "command"), [("typer", "demo"), ("rich", "run Hi"), ("uvicorn", "demo")])
def test_a_missing_extra_is_named(missing, command):
    without = f"import sys; sys.modules['{missing}'] = None"
    code = f"{without}; from streamtool.cli import main; sys.exit(main('{command}'.split()))"
    child = process(code=code)
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (2, "")
    assert err == (
        f'streamtool: this command needs the extra "serve" ({missing} is missing): pip install "streamtool[serve]"\n'
    )


# --- parse -----------------------------------------------------------------------------------------------------------

TEXT = '<think>hm</think>Sure.\n<tool_call>{"name": "ping", "arguments": {"n": 1,}}</tool_call> Done. Grüße 🌡'


def test_parse_json_prints_one_object_per_event(run):
    code, out, err = run("parse", "-", "--json", given=TEXT.encode())
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        '{"type": "reasoning_delta", "text": "hm"}',
        '{"type": "text_delta", "text": "Sure."}',
        '{"type": "call_start", "index": 0, "name": "ping", "id": null, "format": "tool_call", "in_reasoning": false}',
        '{"type": "arguments_delta", "index": 0, "text": "{\\"n\\": 1}"}',
        '{"type": "call_end", "index": 0, "complete": true, "repairs": ["trailing_comma"]}',
        '{"type": "text_delta", "text": " Done. Grüße 🌡"}',
    ]


def test_parse_prints_discarded_text_and_the_reason(run):
    _, out, _ = run("parse", "--json", given=b'<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>')
    assert events(out)[2:] == [
        {"type": "call_end", "index": 0, "complete": False, "repairs": []},
        {"type": "discarded", "text": "}}", "reason": "malformed"},
    ]


def test_parse_without_json_prints_the_same_events(run):
    code, out, _ = run("parse", given=TEXT.encode())
    assert code == 0
    assert out.splitlines() == [
        'reasoning  "hm"',
        'text       "Sure."',
        "call       ping  format tool_call",
        'arguments  "{\\"n\\": 1}"',
        "end        complete  repaired: trailing_comma",
        'text       " Done. Grüße 🌡"',
        "verdict    One call in `tool_call`, repaired: trailing comma.",
    ]


def folded(out: str) -> list[tuple[object, ...]]:
    """Return the events with adjacent events of one kind joined."""
    joined: list[list[object]] = []
    for event in events(out):
        kind, text = event.pop("type"), event.pop("text", "")
        if joined and kind in ("text_delta", "reasoning_delta", "arguments_delta") and joined[-1][0] == kind:
            joined[-1][2] = f"{joined[-1][2]}{text}"
        else:
            joined.append([kind, json.dumps(event), text])
    return [tuple(event) for event in joined]


@pytest.mark.parametrize("delta", [1, 2, 3, 7, 1000])
def test_parse_finds_the_same_events_in_pieces(run, delta):
    _, whole, _ = run("parse", "--json", given=TEXT.encode())
    _, out, _ = run("parse", "--json", "--delta", str(delta), given=TEXT.encode())
    assert folded(out) == folded(whole)
    assert all(len(str(event.get("text", ""))) <= delta + 20 for event in events(out))


def test_parse_reads_files_too(run, tmp_path):
    (tmp_path / "reply.txt").write_bytes(TEXT.encode())
    _, out, _ = run("parse", str(tmp_path / "reply.txt"), "--json")
    assert out == run("parse", "--json", given=TEXT.encode())[1]


def test_parse_of_empty_input_prints_nothing(run):
    assert run("parse", "--json") == (0, "", "")


def test_parse_replaces_invalid_bytes(run):
    _, out, _ = run("parse", "--json", given=b"a\xff\xfe b\xc3")
    assert folded(out) == [("text_delta", "{}", "a\ufffd\ufffd b\ufffd")]


def test_parse_prints_lone_surrogates_as_escapes(run):
    given = rb'<tool_call>{"name": "\ud800", "arguments": "{\"a\": \"\ud800\"}"}</tool_call>'
    code, out, _ = run("parse", "--json", given=given)
    assert code == 0
    assert all(json.loads(line) for line in out.encode().splitlines())


@pytest.mark.parametrize("shape", [TOOLS, [tool["function"] for tool in TOOLS], [{"name": "ping"}]])
def test_parse_uses_the_tools_of_a_file(run, tmp_path, shape):
    (tmp_path / "tools.json").write_text(json.dumps(shape))
    _, out, _ = run("parse", "--json", "--tools", str(tmp_path / "tools.json"), given=b"@pong {}\n@ping {}\n")
    assert [(event["type"], event.get("name")) for event in events(out)] == [
        ("text_delta", None),
        ("call_start", "ping"),
        ("arguments_delta", None),
        ("call_end", None),
    ]


def test_parse_converts_values_by_the_schema(run, tmp_path):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}
    (tmp_path / "tools.json").write_text(json.dumps([{"name": "f", "parameters": schema}]))
    given = b'<invoke name="f"><parameter name="n">1</parameter><parameter name="s">1</parameter></invoke>'
    _, out, _ = run("parse", "--json", "--tools", str(tmp_path / "tools.json"), given=given)
    assert "".join(str(e["text"]) for e in events(out) if e["type"] == "arguments_delta") == '{"n": 1, "s": "1"}'


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not JSON"),
        ("{}", "expected a JSON list of tools"),
        ("[1]", "tool 1 is not a JSON object"),
        ('[{"name": "a"}, {"parameters": {}}]', "tool 2 has no name"),
        ('[{"type": "function", "function": {"name": ""}}]', "tool 1 has no name"),
        ('[{"name": "a", "parameters": []}]', "tool 1 (a): parameters must be a JSON object"),
    ],
)
def test_parse_reports_invalid_tools(run, tmp_path, content, sentence):
    (tmp_path / "tools.json").write_text(content)
    code, out, err = run("parse", "--tools", str(tmp_path / "tools.json"))
    assert (code, out) == (2, "")
    assert sentence in err
    assert "tools.json" in err


@pytest.mark.parametrize("argv", [["missing.txt"], ["--tools", "missing.json"], ["."]])
def test_parse_names_an_unreadable_file(run, argv):
    code, out, err = run("parse", *argv)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"streamtool: \S+ cannot be read: .+\n", err)


def test_parse_reads_only_the_chosen_formats(run):
    given = b'@ping {"a": 1}\n<invoke name="ping"/>'
    _, out, _ = run("parse", "--json", "--formats", "invoke, react", given=given)
    assert [e["format"] for e in events(out) if e["type"] == "call_start"] == ["invoke"]


@pytest.mark.parametrize(("names", "sentence"), [("invok", 'did you mean "invoke"?'), (",", "name at least one of")])
def test_parse_suggests_a_similar_format(run, names, sentence):
    code, _, err = run("parse", "--formats", names)
    assert code == 2
    assert sentence in err


def test_parse_accepts_a_prefix_that_is_not_shown(run):
    _, out, _ = run("parse", "--json", "--prefix", "<think>so", given=b" far</think>Now.")
    assert folded(out) == [("reasoning_delta", "{}", " far"), ("text_delta", "{}", "Now.")]


def test_parse_prints_events_while_text_arrives():
    child = process("parse", "-", "--json", "--formats", "command", stdin=subprocess.PIPE, text=False, encoding=None)
    assert child.stdin is not None
    assert child.stdout is not None
    for piece, line in [
        (b"Hi", {"type": "text_delta", "text": "Hi"}),
        (b" \xc3", {"type": "text_delta", "text": " "}),
        (b'\xa4\n@f {"', {"type": "text_delta", "text": "ä"}),
    ]:
        child.stdin.write(piece)
        child.stdin.flush()
        assert json.loads(child.stdout.readline()) == line
    child.stdin.close()
    rest = [json.loads(line)["type"] for line in child.stdout]
    assert rest == ["call_start", "arguments_delta", "call_end"]
    child.stdout.close()
    assert child.stderr is not None
    child.stderr.close()
    assert child.wait(20) == 0


def test_parse_exits_quietly_on_a_closed_pipe():
    child = process("parse", "-", "--json", "--delta", "1", "--formats", "command", stdin=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("x")
    child.stdin.flush()
    child.stdout.readline()
    child.stdout.close()
    child.stdin.write("x" * 10_000)
    child.stdin.close()
    assert child.stderr is not None
    assert child.stderr.read() == ""
    child.stderr.close()
    assert child.wait(20) == 0


def test_interrupted_parse_exits_with_130():
    child = process("parse", "-", "--json", "--formats", "command", stdin=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("x")
    child.stdin.flush()
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert (child.returncode, err) == (130, "")


# --- prompt ----------------------------------------------------------------------------------------------------------


def test_prompt_prints_the_prompt_for_the_model(run):
    code, out, err = run("prompt", "-", given=json.dumps(REQUEST).encode())
    assert (code, err) == (0, "streamtool: format invoke: default\n")
    assert out.startswith("── system ──\nBe brief.\n\n# Tools\n")
    assert out.endswith("── user ──\nPing it.\n")
    assert write([Call("ping", "{}")], "invoke") in out


@each("format_", FORMATS)
def test_prompt_teaches_the_chosen_format(run, format_):
    _, out, _ = run("prompt", "-", "--format", format_, given=json.dumps(REQUEST).encode())
    assert write([Call("ping", "{}")], format_) in out


def test_prompt_reads_a_settings_file(run, tmp_path):
    (tmp_path / "s.toml").write_text('[[model]]\nmatch = "m"\nformat = "invoke"\n')
    (tmp_path / "r.json").write_text(json.dumps(REQUEST))
    _, out, _ = run("prompt", str(tmp_path / "r.json"), "--config", str(tmp_path / "s.toml"))
    assert '<invoke name="ping">' in out


def test_prompt_notes_dropped_features(run):
    orphan = {"role": "tool", "tool_call_id": "x", "content": "what?"}
    request = REQUEST | {"messages": [*REQUEST["messages"], orphan, {"role": "user", "content": "Hm."}]}
    code, _, err = run("prompt", "-", given=json.dumps(request).encode())
    assert (code, err) == (0, "streamtool: format invoke: default\nstreamtool: note: result x has no call\n")


def test_prompt_names_tools_left_out_and_the_reasons(run):
    request = REQUEST | {"tools": [*REQUEST["tools"], {"type": "web_search"}]}
    code, _, err = run("prompt", "-", given=json.dumps(request).encode())
    assert code == 0
    assert "streamtool: left out: tool of type web_search, because only its vendor can run it\n" in err


@pytest.mark.parametrize("protocol", [None, *dialects.ALL_CLIENTS])
def test_prompt_reads_the_requests_of_every_client_protocol(run, protocol):
    ask = dialects.Ask((("system", "Be brief."), ("user", "Ping it.")), (("ping", "Pings.", {"type": "object"}),))
    printed = set()
    for name in dialects.ALL_CLIENTS if protocol is None else [protocol]:
        given = json.dumps(dialects.write(name, ask)).encode()
        code, out, err = run("prompt", "-", *(["--protocol", protocol] if protocol else []), given=given)
        assert (code, err) == (0, "streamtool: format invoke: default\n")
        assert "Be brief." in out
        printed.add(out)
    assert len(printed) == 1


def test_prompt_reads_an_ollama_generate_request(run):
    given = {"model": "m", "system": "Be brief.", "prompt": "Ping it."}
    code, out, _ = run("prompt", "-", given=json.dumps(given).encode())
    assert (code, out) == (0, "── system ──\nBe brief.\n── user ──\nPing it.\n")


@pytest.mark.parametrize(
    ("given", "protocol"),
    [
        ({"messages": [], "options": {"num_ctx": 1}}, "ollama"),
        ({"messages": [], "format": "json"}, "ollama"),
        ({"contents": []}, "gemini"),
        ({"messages": [], "system": "x"}, "messages"),
        ({"messages": [], "tools": [{"type": "function"}]}, "chat"),
    ],
)
def test_prompt_guesses_the_protocol_from_the_fields(given, protocol):
    assert guess_protocol(json.dumps(given).encode()) == protocol


def test_prompt_rejects_unknown_protocols(run):
    code, _, err = run("prompt", "-", "--protocol", "smoke", given=b"{}")
    assert code == 2
    assert "not one of chat, messages, responses, ollama, gemini" in err


@pytest.mark.parametrize(
    ("given", "sentence"), [(b"{", "not JSON"), (b"[]", "JSON object"), (b'{"model": "m"}', "messages")]
)
def test_prompt_reports_an_invalid_request(run, given, sentence):
    code, out, err = run("prompt", "-", given=given)
    assert (code, out) == (2, "")
    assert sentence in err


# --- formats, bench --------------------------------------------------------------------------------------------------


def test_plugin_lists_the_engines_and_prints_the_path_of_a_file(run):
    code, out, _ = run("plugin")
    names = [line.split()[0] for line in out.splitlines()]
    assert (code, names) == (0, ["vllm", "sglang", "mlx-lm", "transformers", "llama-cpp-python"])
    for name in names:
        assert Path(run("plugin", name)[1].removesuffix("\n")).is_file()
    code, out, err = run("plugin", "tgi")
    assert (code, out) == (2, "")
    assert "no plugin for 'tgi'; expected one of vllm, sglang, " in err


def test_the_plugin_for_vllm_is_not_named_vllm(run):
    """vLLM registers the file as a module under the file's name."""
    assert Path(run("plugin", "vllm")[1].strip()).stem != "vllm"


def test_formats_lists_all(run):
    _, out, _ = run("formats")
    lines = out.splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(FORMATS)
    assert {line.split()[0] for line in lines if "  opt-in" in line} == OPT_IN
    assert max(map(cell_len, lines)) <= 80
    models = [FORMATS[line.split()[0]].models.casefold() for line in lines]
    assert models == [*sorted(filter(None, models)), *(one for one in models if not one)]
    (line,) = (line for line in lines if line.startswith("tool_call "))
    assert line.index("<tool_call>") == lines[0].index("<|tools_prefix|>")


@each("name", FORMATS)
def test_formats_shows_an_example_that_parses(run, name):
    _, out, _ = run("formats", name)
    facts, _, example = out.partition("\n\n")
    assert re.match(rf"{name}\n(  also named .*\n)?  opens with ", facts)
    tools = {"get_weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}
    (call,) = parse(example, tools, formats=[name])[1]
    assert (call.name, call.arguments) == ("get_weather", '{"city": "Paris", "days": 3}')


def test_formats_reports_buffering_and_special_tokens(run):
    _, out, _ = run("formats", "llama3")
    assert "  special tokens <|python_tag|>: the server must preserve them\n" in out
    assert re.search(r"  buffered +\d+ while a marker may begin; \d+ \+ name until the call starts; ", out)


def test_formats_suggests_a_similar_format(run):
    code, _, err = run("formats", "qwen3_codr")
    assert code == 2
    assert "qwen3_coder" in err


def test_formats_shows_what_is_chosen_for_a_model_and_why(run):
    _, out, _ = run("formats", "qwen3:8b")
    assert out.startswith("qwen3:8b is taught invoke (from the name: family qwen-?3).\n")
    assert "\n\ninvoke\n" in out
    _, out, _ = run("formats", "org/Nobody-7B")
    assert out.startswith("org/Nobody-7B is taught invoke (default, because the family is unknown).\n")


def test_formats_shows_a_format_under_the_name_of_a_parser(run):
    _, out, _ = run("formats", "hermes")
    assert out.startswith("tool_call\n  also named     ")


def test_the_size_of_the_window_is_an_option(run, monkeypatch):
    monkeypatch.setenv("STREAMTOOL_CLIENT_KEY", "none")  # clients send it as their key
    body = json.dumps(REQUEST).encode()
    assert run("prompt", "-", given=body)[0] == 0
    code, _, err = run("prompt", "-", "--context", "60", given=body)
    assert code > 0
    assert "the model's context is 60" in err
    assert run("serve", "--context", "4096", "--check")[0] == 0


def test_other_names_of_formats_and_protocols(run, tmp_path):
    reply = tmp_path / "reply.txt"
    reply.write_text('<tool_call>{"name": "ping", "arguments": {}}</tool_call>')
    _, out, _ = run("parse", str(reply), "--formats", "qwen25", "--json")
    assert '"name": "ping"' in out
    _, out, err = run(
        "prompt", "-", "--format", "qwen3_xml", "--protocol", "openai", given=json.dumps(REQUEST).encode()
    )
    assert "<function=" in out
    assert "format qwen3_coder: by --format" in err


def test_bench_names_an_unreadable_file(run):
    code, _, err = run("bench", "missing.txt")
    assert code == 2
    assert "missing.txt cannot be read" in err


def test_bench_measures_a_text(run, tmp_path):
    (tmp_path / "short.txt").write_text("A short text. " * 20)
    code, out, _ = run("bench", str(tmp_path / "short.txt"))
    assert code == 0
    assert "short.txt" in out


# --- demo ------------------------------------------------------------------------------------------------------------

ANSWER = "Final answer  Here is what I found: 18 °C in Paris, light rain"


def test_demo_shows_deltas_as_they_arrive_and_ends_with_an_answer(monkeypatch, capsys):
    source, sink = os.pipe()
    lines = []

    def look_on():
        with os.fdopen(source, encoding="utf-8") as pipe:
            lines.extend((time.monotonic(), line) for line in pipe)

    reader = threading.Thread(target=look_on)
    reader.start()
    with os.fdopen(sink, "w", encoding="utf-8") as pipe:  # which buffers output that is not flushed
        monkeypatch.setattr(sys, "stdout", pipe)
        code = main(["demo", "--delay", "0.05"])
    reader.join()
    assert (code, capsys.readouterr().err) == (0, "")
    out = "".join(line for _, line in lines)
    assert "  http.client  ⇄" in out
    assert ANSWER in out
    assert 'get_weather({"city": "Paris"})  →  18 °C in Paris, light rain' in out
    shown = {
        kind: [at for at, line in lines if f"  {kind} " in line] for kind in ("text", "call", "arguments", "finish")
    }
    assert len(shown["call"]) == 1
    assert len(shown["finish"]) == 2
    assert shown["text"][0] + 0.3 < shown["call"][0] < shown["arguments"][0] < shown["arguments"][-1] - 0.1
    assert "".join(json.loads(piece) for piece in re.findall(r'  arguments  (".*")', out)) == '{"city": "Paris"}'


# the openai client may leave an async generator unfinished
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_demo_with_the_openai_client(run):
    code, out, err = run("demo", "--delay", "0", "--client", "openai")
    assert (code, err) == (0, "")
    assert "  the openai client  ⇄" in out
    assert ANSWER in out


def test_demo_reports_an_unavailable_client(run, monkeypatch):
    code, out, err = run("demo", "--client", "nope")
    assert (code, out, err) == (2, "", "streamtool: --client: expected http or openai, found 'nope'\n")
    monkeypatch.setitem(sys.modules, "openai", None)
    code, out, err = run("demo", "--client", "openai")
    assert (code, out) == (2, "")
    assert err == "streamtool: --client openai needs the openai client: pip install openai\n"


@pytest.mark.parametrize("format_", [name for name in FORMATS if is_teachable(name)][::3])
def test_demo_teaches_any_format(run, format_):
    code, out, err = run("demo", "--delay", "0", "--format", format_)
    assert (code, err) == (0, "")
    assert ANSWER in out
    assert "buffered" in out
    assert not [line for line in out.splitlines() if cell_len(line) > 80]


def test_demo_shows_the_effect_of_each_delta():
    shadow = Shadow(DEMO_TOOLS, ("tool_call",))
    deltas = (
        "Hi",
        "\n",
        "there.\n<to",
        'ol_call>{"name": "get_weather"',
        ', "argum',
        'ents": {',
        '"city": "P',
        'aris"}',
    )
    ends = ("}", "\n</tool", "_call>")
    assert [shadow.explain(delta) for delta in (*deltas, *ends)] == [
        "not received yet",  # text that is being sent
        "buffered: may become a call",  # a newline, which may precede a call
        "buffered: may become a call",
        "not received yet",  # in a format with unique markers, the name commits the call
        "markup of the call",
        "not received yet",
        "not received yet",
        "buffered: may be markup",  # the quote ends its string only if the next characters fit
        "buffered: may be markup",
        "buffered: may be markup",
        "markup of the call",
    ]


HOSTILE = "\x1b[2J\x9b" + "東京" * 60 + " and " + "x" * 200


def test_demo_fits_into_80_columns_for_any_output_of_the_model(run):
    from support.servers import uvicorn_server

    from streamtool.testing import ScriptedUpstream, text

    call = write([Call("get_weather", json.dumps({"city": HOSTILE}, ensure_ascii=False))], "tool_call")
    with uvicorn_server(ScriptedUpstream(text(call, size=90), text(f"{HOSTILE}\n" * 3, size=50))) as served:
        code, out, _ = run("demo", "--upstream", f"{served.url}/{'long' * 20}", "--model", "m")
    assert code == 0
    assert "\x1b" not in out
    assert "\x9b" not in out
    assert max(cell_len(line) for line in out.splitlines()) == 80
    answer = out.partition("Final answer")[2].partition("your own model")[0]
    assert "".join(answer.split()).count("東京") == 180


def test_demo_ignores_settings_in_the_environment(run, monkeypatch):
    monkeypatch.setenv("STREAMTOOL_CLIENT_KEYS", "secret")
    monkeypatch.setenv("STREAMTOOL_NOPE", "1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    code, out, _ = run("demo", "--delay", "0")
    assert code == 0
    assert ANSWER in out


def test_demo_with_an_unreachable_upstream_exits_with_3(run):
    code, _, err = run("demo", "--upstream", "http://127.0.0.1:1", "--model", "m")
    assert (code, err) == (3, "streamtool: the upstream at 127.0.0.1:1 cannot be reached; is it running?\n")


def test_demo_with_a_failing_upstream_exits_with_1(run):
    from support.servers import uvicorn_server

    from streamtool.testing import ScriptedUpstream, status

    with uvicorn_server(ScriptedUpstream(status(404, "no \x1b[2Jsuch model"))) as served:
        code, _, err = run("demo", "--upstream", served.url, "--model", "m")
    assert code == 1
    answered = f"the upstream ({served.url}) answered 404: no �[2Jsuch model"
    assert err == f"streamtool: {answered} (404: check --model and the URL)\n"


def test_demo_reports_its_error_once(run, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # only the standard library's last resort remains
    code, _, err = run("demo", "--upstream", "http://127.0.0.1:1")
    assert (code, err.count("\n")) == (3, 1)


def test_demo_exits_quietly_on_a_closed_pipe():
    child = forked("demo", "--delay", "0.01")
    assert child.stderr is not None
    for line in child.stdout:
        if "the model writes" in line:
            break
    child.stdout.close()
    assert child.stderr.read() == ""
    child.stderr.close()
    assert child.wait(20) == 0


def test_demo_with_the_users_own_model(run):
    from support.servers import uvicorn_server

    from streamtool.testing import ScriptedUpstream, text

    call = write([Call("get_weather", '{"city": "Oslo", "unit": "fahrenheit"}')], "invoke")
    with uvicorn_server(ScriptedUpstream(text(call), text("It rains."))) as served:
        code, out, _ = run("demo", "--upstream", served.url, "--model", "m")
    assert code == 0
    assert "64 °F in Oslo, light rain" in out
    assert "Final answer  It rains." in out


def test_demo_without_an_answer_exits_with_1(run):
    from support.servers import uvicorn_server

    from streamtool.testing import ScriptedUpstream, text

    call = write([Call("get_weather", '{"city": "Oslo"}')], "tool_call")
    with uvicorn_server(ScriptedUpstream(text(call, size=50))) as served:
        code, _, err = run("demo", "--upstream", served.url, "--model", "m")
    assert (code, err) == (1, "streamtool: the conversation ended without a final answer\n")


def test_demo_needs_the_environment_variable_with_the_key(run):
    code, _, err = run("demo", "--upstream", "http://127.0.0.1:1", "--key-env", "NO_SUCH_VARIABLE")
    assert code == 2
    assert "the environment variable NO_SUCH_VARIABLE is not set" in err


def test_interrupted_demo_exits_with_130():
    child = forked("demo", "--delay", "5")
    for line in child.stdout:
        if "the model writes" in line:
            break
    child.send_signal(signal.SIGINT)
    _, err = child.communicate()
    assert (child.returncode, err) == (130, "")


# --- serve -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("server", "stop", "code"), [
    ("uvicorn", signal.SIGINT, 130),
    ("uvicorn", signal.SIGTERM, 0),
    ("hypercorn", signal.SIGINT, 130),
    ("hypercorn", signal.SIGTERM, 0),
])  # fmt: skip
def test_the_curl_command_printed_by_serve_works(server, stop, code, monkeypatch):
    monkeypatch.setenv("STREAMTOOL_FORMATS", "tool_call")  # fast to compile
    child = forked("serve", "--port", "0", "--server", server)
    said = []
    for line in child.stdout:
        said.append(line)
        if line.startswith("curl "):
            break
    assert re.fullmatch(r"streamtool listens on http://127\.0\.0\.1:\d+/v1\n", said[0])
    assert "the embedded sample model" in said[1]
    address = re.search(r"http://\S+", said[-1])
    body = re.search(r"-d '(.*)'", said[-1])
    assert address
    assert body
    headers = {"content-type": "application/json"}
    reply = httpx.post(address[0], content=body[1], headers=headers, trust_env=False, timeout=30)  # time to compile
    assert '"name":"get_weather"' in reply.text
    assert reply.text.endswith("data: [DONE]\n\n")
    child.send_signal(stop)
    _, err = child.communicate()
    assert child.returncode == code
    assert re.fullmatch(
        r"[\d-]{10} [\d:]{8} streamtool: 200 req_\w+ sample: tools 1, calls 1 \(invoke\) \(\d+\.\d\d s\) · One call in `invoke`\.\n",
        err,
    )


def test_serve_reports_a_port_in_use(run):
    from support.servers import listener

    with listener() as taken:
        port = taken.getsockname()[1]
        code, out, err = run("serve", "--port", str(port))
    assert (code, out) == (1, "")
    assert (
        err
        == f"streamtool: cannot listen on 127.0.0.1:{port}: Address already in use; choose another one with --port (0: any free port)\n"
    )


@pytest.mark.parametrize(("flags", "setting", "extra", "module"), [
    (["--check"], "METRICS", "metrics", "prometheus_client"), (["--port", "0"], "OTEL", "otel", "opentelemetry"),
])  # fmt: skip
def test_serve_reports_a_missing_extra_before_it_prints_anything_else(monkeypatch, flags, setting, extra, module):
    monkeypatch.setenv(f"STREAMTOOL_{setting}", "1")
    code = f"import sys; sys.modules['{module}'] = None; from streamtool.cli import main; sys.exit(main(sys.argv[1:]))"
    child = process("serve", *flags, code=code)
    out, err = child.communicate(timeout=20)
    assert child.returncode == 2
    assert "Paste" not in out
    assert "fine" not in out
    assert err.endswith(f'install the extra "{extra}": pip install "streamtool[{extra}]"\n')


@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_serve_exits_with_1_if_it_cannot_start(server, tmp_path):
    pytest.importorskip("mcp")
    (tmp_path / "s.toml").write_text(
        'formats = ["tool_call"]\n[mcp.notes]\ncommand = "/nowhere/at/all"\ntools = ["*"]\n[[model]]\nmatch = "*"\nmcp = ["notes"]\n'
    )
    child = forked("serve", "--port", "0", "--server", server, "--config", str(tmp_path / "s.toml"))
    _, err = child.communicate()
    assert child.returncode == 1
    assert "the MCP server notes cannot be opened" in err
    assert "Traceback" not in err


def test_serve_notes_if_the_curl_command_needs_a_model():
    from streamtool.cli.serve import ServeFlags, model_hint

    hint = ' (replace "default" with one of the upstream\'s models)'
    assert model_hint(ServeFlags(upstream="http://127.0.0.1:1").settings()) == hint
    assert model_hint(ServeFlags(upstream="http://127.0.0.1:1", model="m").settings()) == ""
    assert model_hint(ServeFlags().settings()) == ""


def test_serve_check_summarises_the_settings(run, tmp_path, monkeypatch):
    monkeypatch.setenv("A_KEY", "very-secret")
    monkeypatch.setenv("STREAMTOOL_FORMAT", "invoke")
    (tmp_path / "s.toml").write_text(
        'client_keys = ["env:A_KEY"]\n[upstream.far]\nurl = "https://x.example/v1"\nkey = "env:A_KEY"\n'
        '[[model]]\nmatch = "big-*"\nuse = "large"\nupstream = "far"\n'
    )
    code, out, err = run("serve", "--check", "--config", str(tmp_path / "s.toml"), "--host", "0.0.0.0", "--port", "9")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "streamtool listens on http://0.0.0.0:9/v1",
        "  upstream  far: https://x.example/v1, auto, with its own key",
        "  engine    unknown server at https://x.example/v1: chat, window unknown, calls forced by schema",
        "  model     big-* → large at far",
        "  mode      emulate, format invoke",
        "  clients   need a key",
        "the settings are valid",
    ]


def test_serve_check_includes_the_flags(run, monkeypatch):
    monkeypatch.setenv("A_KEY", "very-secret")
    flags = ["--upstream", "http://127.0.0.1:8000/v1/", "--protocol", "chat", "--key-env", "A_KEY", "--model", "big"]
    flags += ["--select-tools", "8"]
    code, out, _ = run("serve", "--check", *flags, "--mode", "emulate", "--format", "react", "--host", "::1")
    assert code == 0
    assert out.splitlines() == [
        "streamtool listens on http://[::1]:8700/v1",
        "  upstream  flag: http://127.0.0.1:8000/v1, chat, with its own key",
        "  engine    unknown server at http://127.0.0.1:8000/v1: chat, window unknown, calls forced by schema",
        "  model     * → big",
        "  mode      emulate, format react, parameters of 8 tools",
        "  clients   need no key",
        "the settings are valid",
    ]


def test_serve_reads_the_file_named_in_the_environment(run, tmp_path, monkeypatch):
    (tmp_path / "s.toml").write_text('format = "labelled"')
    monkeypatch.setenv("STREAMTOOL_CONFIG", str(tmp_path / "s.toml"))
    assert "format labelled" in run("serve", "--check")[1]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--upstream", "127.0.0.1:80"], "--upstream: expected a url such as http://127.0.0.1:80"),
        (["--upstream", "http://x/v1/responses"], '--upstream: omit "/responses" from the url'),
        (["--upstream", "sample", "--protocol", "morse"], "--protocol: "),
        (
            ["--upstream", "sample", "--key-env", "NO_SUCH_VARIABLE"],
            "--key-env: the environment variable NO_SUCH_VARIABLE is not set",
        ),
        (["--protocol", "chat"], "--protocol and --key-env require --upstream"),
        (["--server", "gunicorn"], "--server: expected one of uvicorn, hypercorn"),
        (["--mode", "odd"], "mode: expected one of emulate, native, auto, rescue"),
        (["--format", "tool_cal"], 'did you mean "tool_call"?'),
        (["--config", "missing.toml"], "missing.toml cannot be read"),
        (["--host", "0.0.0.0"], "reachable from other machines"),
    ],
)
def test_serve_with_invalid_settings_exits_with_2(run, flags, sentence):
    code, out, err = run("serve", "--check", *flags)
    assert (code, out) == (2, "")
    assert sentence in err


def test_serve_suggests_a_similar_setting(run, tmp_path):
    (tmp_path / "s.toml").write_text('formta = "invoke"')
    code, _, err = run("serve", "--check", "--config", str(tmp_path / "s.toml"))
    assert code == 2
    assert 'formta: unknown setting; did you mean "format"?' in err


def test_serve_can_be_made_insecure_explicitly(run):
    assert run("serve", "--check", "--upstream", "sample", "--host", "0.0.0.0", "--insecure")[0] == 0


def test_serve_requires_a_settings_file_in_utf_8(run, tmp_path):
    (tmp_path / "s.toml").write_bytes(b'format = "\xff"')
    code, _, err = run("serve", "--check", "--config", str(tmp_path / "s.toml"))
    assert code == 2
    assert "is not UTF-8" in err


def test_serve_check_lists_allowed_hosts_and_origins(run, monkeypatch):
    monkeypatch.setenv("STREAMTOOL_HOSTS", "proxy.example")
    monkeypatch.setenv("STREAMTOOL_CORS_ORIGINS", "https://app.example,http://localhost:*")
    out = run("serve", "--check")[1]
    assert out.splitlines()[-3:-1] == [
        "  names     proxy.example",
        "  origins   https://app.example, http://localhost:*",
    ]


def test_default_settings_files(run, monkeypatch, tmp_path):
    """The file in the working directory precedes the user's; a named file precedes both."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "streamtool").mkdir(parents=True)
    own, users, named = (
        tmp_path / "streamtool.toml",
        tmp_path / "config" / "streamtool" / "streamtool.toml",
        tmp_path / "named.toml",
    )
    assert run("serve", "--check")[0] == 0
    users.write_text('format = "qwen3_coder"')
    code, out, err = run("serve", "--check")
    assert (code, f"settings from {users}" in err, "format qwen3_coder" in out) == (0, True, True)
    own.write_text('format = "fenced"')
    code, out, err = run("serve", "--check")
    assert (code, "settings from streamtool.toml" in err, "format fenced" in out) == (0, True, True)
    named.write_text('format = "labelled"')
    code, out, err = run("serve", "--check", "--config", str(named))
    assert (code, "settings from" in err, "format labelled" in out) == (0, False, True)
    own.write_text("formt = 1")
    code, _, err = run("serve", "--check")
    assert code != 0
    assert "format" in err
