"""Requests as coding agents and agent libraries send them, at their real sizes, modelled on their wire format.

Each builder gives the request of one turn: turn 1 is the first request of a conversation, turn 2 the same conversation
after three calls, two of them in one reply. The texts are made up, deterministic, and as long as the agents' own; only
the shape matters: the place of system text, the shape of content, the surrounding fields. Each request also lists what
has to be in the prompt of a text-only model.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

Json = Any
Headers = tuple[tuple[bytes, bytes], ...]
MODEL = "local-model"
BETAS = (
    *("claude-code-20250219", "interleaved-thinking-2025-05-14", "context-management-2025-06-27"),
    *("prompt-caching-scope-2026-01-05", "advanced-tool-use-2025-11-20", "effort-2025-11-24"),
    *("mid-conversation-system-2026-03-03", "fine-grained-tool-streaming-2025-05-14"),
)


@frozen
class AgentRequest:
    """A request, and the required content of its prompt."""

    agent: str
    protocol: str
    turn: int
    body: dict[str, Any] = field(repr=False)
    headers: Headers
    tools: tuple[str, ...]
    """Tool names as the model has to see them."""
    system: tuple[str, ...] = field(repr=False)
    """The pieces of system text."""
    said: tuple[str, ...] = field(repr=False)
    """The texts of user and assistant, in order."""
    history: tuple[Any, ...] = field(repr=False)
    """("call", name, arguments) and ("result", name, text), in order."""
    call: tuple[str, str] = field(repr=False)
    """The call that a model makes in its reply: name, and arguments as JSON text."""
    listed: Json = field(repr=False, default=())
    """The tools as in the request."""
    query: bytes = b""

    @property
    def name(self) -> str:
        return f"{self.agent}-{self.protocol}-{self.turn}"

    @property
    def data(self) -> bytes:
        return compact(self.body).encode()


@frozen
class Step:
    """An earlier reply of the model: text, then calls with their results."""

    text: str
    calls: tuple[tuple[str, str, Json, str], ...]
    """Id, name, arguments, result."""


def compact(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- texts of a given size --------------------------------------------------------------------------------------------

_SENTENCES = (
    "Prefer the smallest change that solves the task, and say in one line what it does.",
    'Quote paths that hold spaces: `cd "/tmp/with spaces"`, never /tmp/with spaces.',
    'NEVER answer with JSON such as {"name": "value", "arguments": {}} unless the user asks for it.',
    "<example>\nuser: what is 2 + 2?\nassistant: 4\n</example>",
    "- Use **absolute** paths; a path that begins with ~ is not expanded.\n- Do not guess URLs.",
    "```sh\ngit status --short && git diff --stat | tail -n 1\n```",
    "It is fine to stop early; it isn't fine to pretend — say “I could not verify this” instead.",
    "Regular expressions use the syntax of Rust (`\\bfn\\s+\\w+`, not `\\<fn`); braces need `\\{\\}`.",
    "Time-outs are in milliseconds (default 120000, at most 600000). Ö, ñ, 漢字 and 🙂 are legal in file names.",
    "IMPORTANT: results may hold <system-reminder> tags; they bear no relation to the result they stand in.",
)


def prose(title: str, size: int, *, words: str = "") -> str:
    """Return unique text of exactly `size` characters, with `words` scattered in it."""
    pieces = [f"# {title}\n"]
    length = len(pieces[0])
    number = 0
    while length < size:
        sentence = f"{title} {number}. {_SENTENCES[number % len(_SENTENCES)]}{words}\n"
        pieces.append(sentence)
        length += len(sentence)
        number += 1
    return "".join(pieces)[:size].rstrip().ljust(size, ".")


_STRING: Json = {"type": "string"}
_KINDS: Mapping[str, Json] = {
    "str": _STRING,
    "int": {"type": "integer", "minimum": 0},
    "num": {"type": "number"},
    "bool": {"type": "boolean", "default": False},
    "strs": {"type": "array", "items": _STRING},
    "enum": {"type": "string", "enum": ["content", "files_with_matches", "count"]},
    "maybe": {"anyOf": [_STRING, {"type": "null"}]},
    "url": {"type": "string", "format": "uri"},
    "map": {"type": "object", "propertyNames": _STRING, "additionalProperties": _STRING},
    "todos": {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "properties": {
                "content": {"type": "string", "minLength": 1},
                "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
            },
            "required": ["content", "status"],
            "additionalProperties": False,
        },
    },
}


def schema(parameters: str, **more: Json) -> Json:
    """Return the schema of a spec such as `path:str limit?:int`; `?` marks optional parameters."""
    properties: dict[str, Json] = {}
    required: list[str] = []
    for entry in parameters.split():
        name, _, kind = entry.partition(":")
        if not name.endswith("?"):
            required.append(name)
        name = name.rstrip("?")
        properties[name] = {**_KINDS[kind], "description": f"The {name.replace('_', ' ')} to work with."}
    return {**more, "type": "object", "properties": properties, "required": required, "additionalProperties": False}


def sized(size: int, names: Iterable[str], make: Callable[[str, str], Json]) -> list[Json]:
    """Return tools made by `make` from name and description, about `size` characters together as JSON."""
    names = list(names)

    def tools(length: int) -> list[Json]:
        return [make(name, prose(f"About {name}", length)) for name in names]

    floor = len(compact(tools(100)))
    trial = len(compact(tools(500)))
    return tools(100 + (size - floor) * 400 // (trial - floor))


# --- the protocols, as most agents write them -------------------------------------------------------------------------


def function(name: str, about: str, parameters: Json, **more: Json) -> Json:
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters, **more}}


def text_part(text: str, **more: Json) -> Json:
    return {"type": "text", "text": text, **more}


def chat_steps(
    steps: Iterable[Step],
    assistant: Callable[[str, list[Json]], Json],
    result: Callable[[str, str, str], Json],
) -> list[Json]:
    sent = []
    for step in steps:
        calls = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for id_, name, arguments, _ in step.calls
        ]
        sent.append(assistant(step.text, calls))
        sent += [result(id_, name, text) for id_, name, _, text in step.calls]
    return sent


def messages_steps(
    steps: Iterable[Step],
    result: Callable[[str, str], Json],
    *,
    before: Sequence[Json] = (),
    after: Sequence[Json] = (),
    more: Mapping[str, Json] | None = None,
) -> list[Json]:
    """Return the messages of the steps; `before` is added to each reply, `after` follows the results, `more` is added
    to each call.
    """
    sent: list[Json] = []
    for step in steps:
        calls = [
            {"type": "tool_use", "id": id_, "name": name, "input": arguments, **(more or {})}
            for id_, name, arguments, _ in step.calls
        ]
        words = [text_part(step.text)] if step.text else []
        sent.append({"role": "assistant", "content": [*before, *words, *calls]})
        sent.append({"role": "user", "content": [*(result(id_, text) for id_, _, _, text in step.calls), *after]})
    return sent


def responses_steps(
    steps: Iterable[Step],
    assistant: Callable[[str], Json],
    call: Callable[[str, str, Json], Json],
    output: Callable[[str, str], Json],
) -> list[Json]:
    items: list[Json] = []
    for step in steps:
        items += [assistant(step.text)] if step.text else []
        items += [call(id_, name, arguments) for id_, name, arguments, _ in step.calls]
        items += [output(id_, text) for id_, _, _, text in step.calls]
    return items


def history_of(steps: Iterable[Step]) -> tuple[Any, ...]:
    """Return the calls and results of the steps, as in `AgentRequest.history`."""
    past: list[Any] = []
    for step in steps:
        past += [("call", name, arguments) for _, name, arguments, _ in step.calls]
        past += [("result", name, text or "(no output)") for _, name, _, text in step.calls]
    return tuple(past)


def said_of(first: Iterable[str], steps: Iterable[Step]) -> tuple[str, ...]:
    return (*first, *(step.text for step in steps if step.text))


SOURCE = 'def area(r):\n\treturn 3.14 * r ** 2  # "π", roughly\n\n\nprint(area(2), "C:\\\\tmp", {"a": [1, 2]})'
TASK = (
    "Use math.pi in shapes.py — keep the tabs, and don't touch <generated> files.\n\nThen run the tests: `make test`."
)


def steps_of(prefix: str, read: str, find: str, run: str, *, path: str, pattern: str, command: str) -> tuple[Step, ...]:
    """Return a conversation so far: two calls in one reply, then a third.

    The words are the agent's names of tools and parameters.
    """
    ids = [f"{prefix}{number:02d}Ab{'xyzw' * 5}" for number in range(3)]
    return (
        Step(
            "I'll look at the file and at who uses it.",
            (
                (ids[0], read, {path: "/work/shapes.py"}, SOURCE),
                (ids[1], find, {pattern: 'area\\(|"π"'}, "shapes.py:1\ntests/test_shapes.py:7\n<tool_call> is no call"),
            ),
        ),
        Step("", ((ids[2], run, {command: 'make test 2>&1 | tail -n "3" && echo "ü 🙂"'}, ""),)),
    )


def browser(agent: str, key: str, *more: tuple[str, str]) -> Headers:
    """Return headers that most agents send; `key` is a Bearer key, or an `x-api-key` with that prefix."""
    named = [("content-type", "application/json"), ("accept", "application/json"), ("user-agent", agent)]
    kind, _, value = key.rpartition(":")
    named.append(("x-api-key", value) if kind == "x-api-key" else ("authorization", f"Bearer {value}"))
    named += [("accept-encoding", "gzip, deflate, br, zstd"), ("connection", "keep-alive"), *more]
    return tuple((name.encode(), value.encode()) for name, value in named)


def anthropic(agent: str, key: str = "x-api-key:sk-local", *, beta: str = "") -> Headers:
    more = [("anthropic-version", "2023-06-01"), *([("anthropic-beta", beta)] if beta else [])]
    return browser(agent, key, *more, ("x-stainless-lang", "js"), ("x-stainless-retry-count", "0"))


# --- Claude Code ------------------------------------------------------------------------------------------------------

_CLAUDE_TOOLS = {
    "Agent": "description:str prompt:str subagent_type?:str run_in_background?:bool",
    "Bash": "command:str timeout?:int description?:str run_in_background?:bool",
    "Read": "file_path:str offset?:int limit?:int pages?:str",
    "Edit": "file_path:str old_string:str new_string:str replace_all?:bool",
    "Write": "file_path:str content:str",
    "Grep": "pattern:str path?:str output_mode?:enum -n?:bool -A?:int multiline?:bool",
    "Glob": "pattern:str path?:str",
    "TodoWrite": "todos:todos",
    "WebFetch": "url:url prompt:str",
    "AskUserQuestion": "questions:strs answers?:map",
    "Skill": "skill:str args?:str",
    "ToolSearch": "query:str max_results:int",
    "NotebookEdit": "notebook_path:str cell_id?:str new_source:str edit_mode?:enum",
    "EnterPlanMode": "",
    "ExitPlanMode": "allowedPrompts?:todos",
    "TaskOutput": "task_id:str block?:bool timeout?:int",
    "TaskStop": "task_id?:str",
    "CronCreate": "cron:str prompt:str recurring?:bool",
    "SendMessage": "to:str message:str summary?:str",
    "LSP": "operation:enum filePath:str line:int character:int",
    "mcp__github__create_issue": "owner:str repo:str title:str body?:str labels?:strs",
    "mcp__github__search-code": "q:str page?:int per_page?:int",
    "mcp__browser__fill.form": "fields:todos",
    "mcp__db__query": "sql:str params?:strs",
}
_DEFERRED = "WebFetch"
"""Tools that `ToolSearch` finds."""
_REMINDER = "<system-reminder>\nThe todo list is empty. Do not mention this.\n</system-reminder>"


def claude_code(turn: int = 1, *, tools: int = 12, model: str = MODEL) -> AgentRequest:
    """Return a Messages request of Claude Code.

    `tools` is 12 or 24. The system text is in three blocks, and in a later message as well. The first block differs in
    each request, and no model needs it.
    """
    size, prompt, before = {12: (31_500, 15_000, 3_000), 24: (60_500, 12_000, 500)}[tools]
    names = list(_CLAUDE_TOOLS)[:tools]

    def tool(name: str, about: str) -> Json:
        parameters = schema(_CLAUDE_TOOLS[name], **{"$schema": "https://json-schema.org/draft/2020-12/schema"})
        deferred = {"defer_loading": True} if name == _DEFERRED else {}
        return {"name": name, "description": about, "input_schema": parameters, **deferred}

    listed = sized(size, names, tool)
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    billing = f"x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch={turn:05x};"
    system = (
        "You are a coding agent that runs in a terminal.",
        prose("Rules of the terminal", prompt),
    )
    inserted = prose("Skills that are available", 1_200)
    steps = steps_of("toolu_", "Read", "Grep", "Bash", path="file_path", pattern="pattern", command="command")
    steps = steps[: 2 * (turn - 1)]
    context = prose("<system-reminder> As you answer, you may use this context", before)
    first = {"role": "user", "content": [text_part(context), text_part(TASK, **cached)]}
    among: Json = {"role": "system", "content": [text_part(inserted)]}
    if turn > 1:  # the same message again, in another shape
        among = {"role": "system", "content": inserted, "output_config": {"effort": "high"}}
    thought = {"type": "thinking", "thinking": "", "signature": "EqQBCgIYAhIk" + "Zm9v" * 40}

    def result(id_: str, text: str) -> Json:
        block: Json = {"type": "tool_result", "tool_use_id": id_}
        if not text:  # `make test` failed without output
            return {**block, "content": "Exit code 2", "is_error": True, **cached}
        return {**block, "content": text} if text == SOURCE else {**block, "content": [text_part(text)]}

    past = messages_steps(
        steps, result, before=[thought], after=[text_part(_REMINDER)], more={"caller": {"type": "direct"}}
    )
    body: dict[str, Any] = {
        "model": model,
        "messages": [first, among, *past],
        "system": [text_part(billing), *(text_part(text, **cached) for text in system)],
        "tools": listed,
        "metadata": {"user_id": '{"device_id":"0af1","account_uuid":"","session_id":"5c1e"}'},
        "max_tokens": 128000,
        "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    }
    history = history_of(steps)
    if history:
        history = (*history[:-1], ("result", "Bash", "The call failed:\nExit code 2"))
    arguments = {
        "file_path": "/work/shapes.py",
        "old_string": '\treturn 3.14 * r ** 2  # "π", roughly',
        "new_string": '\treturn math.pi * r ** 2  # </tool_call> <tool_call>{"name": "Bash"}\n',
        "replace_all": False,
    }
    return AgentRequest(
        f"claude_code_{tools}",
        "messages",
        turn,
        body,
        (*anthropic("claude-cli/2.1.0 (external, cli)", beta=",".join(BETAS)), (b"x-app", b"cli")),
        tuple(name for name in names if name != _DEFERRED),
        (*system, inserted),
        said_of((context, TASK), steps),
        history,
        ("Edit", compact(arguments)),
        listed,
        b"beta=true",
    )


# --- Codex ------------------------------------------------------------------------------------------------------------

GRAMMAR = r"""start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF
%import common.LF
"""
PATCH = (
    "*** Begin Patch\n*** Update File: shapes.py\n@@ def area(r):\n"
    '-\treturn 3.14 * r ** 2  # "π", roughly\n+\treturn math.pi * r ** 2\n*** End Patch\n'
)
_CODEX_TOOLS = {
    "exec_command": "cmd:str workdir?:str yield_time_ms?:int max_output_tokens?:int login?:bool",
    "write_stdin": "session_id:num chars?:str yield_time_ms?:int",
    "update_plan": "explanation?:maybe plan:todos",
    "view_image": "path:str",
    "request_user_input": "questions:strs",
}
_CODEX_GROUPS = {
    "mcp__docs": {"lookup": "symbol:str version?:str", "list-pages": ""},
    "multi_agent": {"spawn": "message:str model?:str", "wait": "ids:strs timeout_ms?:int"},
}


def codex(turn: int = 1, *, additional: bool = False) -> AgentRequest:
    """Return a Responses request of Codex, with tools of five types; `additional`: all of them are in an item of the
    input.
    """
    listed = _codex_tools(14_000 if additional else 18_000)
    texts = (prose("How to work in this repository", 17_000), prose("Permissions of the sandbox", 5_500))
    mode = "<collaboration_mode>Default: work until the task is done.</collaboration_mode>"
    context = prose("<environment_context> cwd, shell and date", 1_200)

    def message(role: str, number: int, *words: str) -> Json:
        kind = "output_text" if role == "assistant" else "input_text"
        parts = [{"type": kind, "text": text} for text in words]
        return {"type": "message", "role": role, "id": f"msg_{number:03d}{'0f' * 20}", "content": parts}

    items = [
        *([{"type": "additional_tools", "role": "developer", "tools": listed}] if additional else []),
        message("developer", 1, *texts),
        message("developer", 2, mode),
        message("user", 3, context),
        message("user", 4, TASK),
    ]
    past = _codex_history(message) if turn > 1 else []
    groups = [f"{group}.{name}" for group, inside in _CODEX_GROUPS.items() for name in inside]
    body: dict[str, Any] = {
        "model": MODEL,
        "input": [*items, *past],
        "tools": [] if additional else listed,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0198f0c2-7a1b-7c3d-9e4f-5a6b7c8d9e0f",
        "text": {"verbosity": "low"},
        "client_metadata": {"x-codex-installation-id": "c0ffee"},
    }
    headers = browser(
        "codex_exec/0.169.0 (Linux; x86_64)",
        "sk-local",
        ("originator", "codex_exec"),
        ("session_id", "0198f0c2-7a1b-7c3d-9e4f-5a6b7c8d9e0f"),
        ("x-codex-turn-metadata", '{"turn_id":"1","sandbox":"workspace-write"}'),
    )
    return AgentRequest(
        "codex_additional_tools" if additional else "codex",
        "responses",
        turn,
        body,
        headers,
        (*_CODEX_TOOLS, "apply_patch", *groups, "tool_search"),
        (*texts, mode),
        (context, TASK, *(("I look at the file.", "Now the change.") if turn > 1 else ())),
        CODEX_PAST if turn > 1 else (),
        ("exec_command", '{"cmd":"sed -n \'1,5p\' shapes.py | grep -c \\"</tool_call>\\\\n\\"","yield_time_ms":1000}'),
        listed,
    )


def codex_additional_tools(turn: int = 1) -> AgentRequest:
    """Return a request of Codex with an empty `tools`."""
    return codex(turn, additional=True)


def _codex_tools(size: int) -> list[Json]:
    search = {"type": "object", "properties": {"query": _STRING, "limit": {"type": "number"}}, "required": ["query"]}

    def flat(name: str, about: str, parameters: str) -> Json:
        return {
            "type": "function",
            "name": name,
            "description": about,
            "strict": False,
            "parameters": schema(parameters),
        }

    def tool(name: str, about: str) -> Json:
        if name in _CODEX_TOOLS:
            return flat(name, about, _CODEX_TOOLS[name])
        if name == "apply_patch":
            grammar = {"type": "grammar", "syntax": "lark", "definition": GRAMMAR}
            return {"type": "custom", "name": name, "description": about, "format": grammar}
        if name == "tool_search":
            return {"type": name, "execution": "client", "description": about, "parameters": search}
        if name == "web_search":
            return {"type": name, "external_web_access": False}
        inner = [flat(one, f"{name}: {one} of it.", given) for one, given in _CODEX_GROUPS[name].items()]
        return {"type": "namespace", "name": name, "description": about, "tools": inner}

    return sized(size, [*_CODEX_TOOLS, "apply_patch", *_CODEX_GROUPS, "tool_search", "web_search"], tool)


def _codex_history(message: Callable[..., Json]) -> list[Json]:
    def reasoning(number: int) -> Json:
        return {"type": "reasoning", "id": f"rs_{number}", "summary": [], "content": None, "encrypted_content": "gAAA"}

    return [
        reasoning(1),
        {**message("assistant", 5, "I look at the file."), "phase": "commentary"},
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_aaaa0001",
            "name": "exec_command",
            "arguments": '{"cmd":"cat shapes.py","yield_time_ms":1000}',
        },
        {
            "type": "function_call",
            "id": "fc_2",
            "call_id": "call_aaaa0002",
            "namespace": "mcp__docs",
            "name": "lookup",
            "arguments": '{"symbol":"math.pi"}',
        },
        {"type": "function_call_output", "call_id": "call_aaaa0001", "output": f"Exit code: 0\nOutput:\n{SOURCE}"},
        {
            "type": "function_call_output",
            "call_id": "call_aaaa0002",
            "output": [{"type": "input_text", "text": "The constant π = 3.141592…"}],
        },
        reasoning(2),
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "pi"}},
        message("assistant", 6, "Now the change."),
        {
            "type": "custom_tool_call",
            "id": "ctc_1",
            "status": "completed",
            "call_id": "call_aaaa0003",
            "name": "apply_patch",
            "input": PATCH,
        },
        {"type": "custom_tool_call_output", "call_id": "call_aaaa0003", "output": "Success. Updated:\nM shapes.py\n"},
    ]


CODEX_PAST = (
    ("call", "exec_command", {"cmd": "cat shapes.py", "yield_time_ms": 1000}),
    ("call", "mcp__docs.lookup", {"symbol": "math.pi"}),
    ("result", "exec_command", f"Exit code: 0\nOutput:\n{SOURCE}"),
    ("result", "mcp__docs.lookup", "The constant π = 3.141592…"),
    ("call", "apply_patch", {"input": PATCH}),
    ("result", "apply_patch", "Success. Updated:\nM shapes.py\n"),
)


# --- agents that speak several protocols ------------------------------------------------------------------------------


@frozen
class Sample:
    """An agent's request, before it is written in a protocol."""

    agent: str
    names: Mapping[str, str]
    """The tools and their parameters."""
    size: int
    """Size of the tools as JSON."""
    system: str
    said: tuple[str, ...]
    steps: tuple[Step, ...]
    call: tuple[str, str]
    extra: Mapping[str, Json] = field(factory=dict)
    """Additional keys of schemas."""

    def past(self, turn: int) -> tuple[Step, ...]:
        return self.steps if turn > 1 else ()

    def tools(self, make: Callable[[str, str, Json], Json]) -> list[Json]:
        return sized(self.size, self.names, lambda n, about: make(n, about, schema(self.names[n], **self.extra)))

    def request(self, protocol: str, turn: int, headers: Headers, body: dict[str, Any]) -> AgentRequest:
        steps = self.past(turn)
        return AgentRequest(
            self.agent,
            protocol,
            turn,
            body,
            headers,
            tuple(self.names),
            (self.system,),
            said_of(self.said, steps),
            history_of(steps),
            self.call,
            body["tools"],
        )


def _flat(name: str, about: str, parameters: Json, **more: Json) -> Json:
    return {"type": "function", "name": name, "description": about, "parameters": parameters, **more}


def _named(name: str, about: str, parameters: Json, **more: Json) -> Json:
    return {"name": name, "description": about, "input_schema": parameters, **more}


def _plain_call(id_: str, name: str, arguments: Json) -> Json:
    return {"type": "function_call", "call_id": id_, "name": name, "arguments": json.dumps(arguments)}


def _plain_output(id_: str, text: str) -> Json:
    return {"type": "function_call_output", "call_id": id_, "output": text}


def _plain_result(id_: str, text: str) -> Json:
    return {"type": "tool_result", "tool_use_id": id_, "content": text}


_EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
_STREAM = {"stream": True, "stream_options": {"include_usage": True}}


def opencode(protocol: str, turn: int = 1) -> AgentRequest:
    """Return a request of opencode: 9 tools, in the shapes of the AI SDK."""
    names = {
        "bash": "command:str timeout?:int workdir?:str description:str",
        "edit": "filePath:str oldString:str newString:str replaceAll?:bool",
        "glob": "pattern:str path?:str",
        "grep": "pattern:str path?:str include?:str",
        "read": "filePath:str offset?:num limit?:num",
        "task": "description:str prompt:str subagent_type:str",
        "todowrite": "todos:todos",
        "webfetch": "url:url format?:enum timeout?:num",
        "write": "content:str filePath:str",
    }
    sample = Sample(
        "opencode",
        names,
        19_000,
        prose("You are an agent in a terminal", 10_000),
        (TASK,),
        steps_of("call_", "read", "grep", "bash", path="filePath", pattern="pattern", command="command"),
        ("write", '{"filePath":"/work/π.py","content":"\\u03c0 = 3\\n\\tprint(\\"{}\\".format(π))\\n"}'),
        {"$schema": "https://json-schema.org/draft/2020-12/schema"},
    )
    agent, past = "opencode/1.18.0 ai-sdk/provider-utils/3.0.20 runtime/bun/1.3.5", sample.past(turn)
    if protocol == "chat":
        sent = chat_steps(
            past,
            lambda text, calls: {"role": "assistant", "content": text, "tool_calls": calls},
            lambda id_, _, text: {"role": "tool", "tool_call_id": id_, "content": text},
        )
        head = [{"role": "system", "content": sample.system}, {"role": "user", "content": TASK}]
        body: dict[str, Any] = {
            "model": MODEL,
            "max_tokens": 32000,
            "messages": [*head, *sent],
            "tools": sample.tools(function),
        }
        return sample.request(protocol, turn, browser(agent, "sk-1"), {**body, "tool_choice": "auto", **_STREAM})
    if protocol == "messages":
        sent = messages_steps(past, _plain_result)
        body = {
            "model": MODEL,
            "max_tokens": 32000,
            "system": [text_part(sample.system, **_EPHEMERAL)],
            "messages": [{"role": "user", "content": [text_part(TASK, **_EPHEMERAL)]}, *sent],
            "tools": sample.tools(_named),
            "tool_choice": {"type": "auto"},
            "stream": True,
        }
        beta = "interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14"
        return sample.request(protocol, turn, anthropic(agent, beta=beta), body)
    sent = responses_steps(
        past,
        lambda text: {"role": "assistant", "content": [{"type": "output_text", "text": text}], "id": "msg_1f"},
        lambda *call: {**_plain_call(*call), "id": f"fc_{call[0][5:9]}"},
        _plain_output,
    )
    user = {"role": "user", "content": [{"type": "input_text", "text": TASK}]}
    body = {
        "model": MODEL,
        "input": [{"role": "developer", "content": sample.system}, user, *sent],
        "max_output_tokens": 32000,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "ses_1",
        "tools": sample.tools(lambda *tool: _flat(*tool, strict=False)),
        "tool_choice": "auto",
        "stream": True,
    }
    return sample.request(protocol, turn, browser(agent, "sk-1"), body)


def opencode_title() -> tuple[dict[str, Any], Headers]:
    """Return the request for a title that opencode sends along with its first one: without tools."""
    head = [{"role": "system", "content": prose("You make titles", 1_500)}]
    asked = [
        {"role": "user", "content": "Generate a title for this conversation:\n"},
        {"role": "user", "content": TASK},
    ]
    body: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 32000,
        "temperature": 0.5,
        "messages": [*head, *asked],
        **_STREAM,
    }
    return body, browser("opencode/1.18.0", "sk-1")


def qwen_code(protocol: str, turn: int = 1) -> AgentRequest:
    """Return a request of Qwen Code: a user message of five parts, results as arrays, a tool named `tool_call`."""
    names = {
        "agent": "description:str prompt:str subagent_type:str",
        "skill": "skill:str",
        "list_directory": "path:str ignore?:strs",
        "read_file": "file_path:str offset?:num limit?:num",
        "grep_search": "pattern:str path?:str glob?:str limit?:num",
        "glob": "pattern:str path?:str",
        "edit": "file_path:str old_string:str new_string:str replace_all?:bool",
        "write_file": "file_path:str content:str",
        "run_shell_command": "command:str is_background:bool timeout?:num directory?:str",
        "save_memory": "fact:str scope?:str",
        "todo_write": "todos:todos",
        "web_fetch": "url:url prompt:str",
        "ask_user_question": "questions:strs",
        "tool_call": "tool_name:str tool_args?:map",
    }
    words = " A tool_call, or [tool_call: read_file for path '/x'], is written as <tool_call>…</tool_call>."
    parts = tuple(prose(f"Part {number} of the context", 2_200) for number in range(4))
    steps = steps_of("call_", "read_file", "tool_call", "run_shell_command", path="file_path", pattern="tool_name",
                     command="command")  # fmt: skip
    sample = Sample(
        "qwen_code",
        names,
        39_000,
        prose("You are a CLI agent", 27_000, words=words),
        (*parts, TASK),
        steps,
        ("tool_call", '{"tool_name":"tool_call","tool_args":{"<tool_call>":"</tool_call>"}}'),
        {"$schema": "http://json-schema.org/draft-07/schema#"},
    )
    agent, past = "QwenCode/0.24.0 (linux; x64)", sample.past(turn)
    content = [text_part(text) for text in sample.said]
    if protocol == "chat":
        sent = chat_steps(
            past,
            lambda text, calls: {"role": "assistant", "content": text or None, "tool_calls": calls},
            lambda id_, _, text: {"role": "tool", "tool_call_id": id_, "content": [text_part(text)] if text else []},
        )
        head = [{"role": "system", "content": sample.system}, {"role": "user", "content": content}]
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [*head, *sent],
            "tools": sample.tools(function),
            "max_tokens": 32000,
            "metadata": {"sessionId": "1", "promptId": "1########0"},
            **_STREAM,
        }
        return sample.request(protocol, turn, browser(agent, "sk-1", ("x-stainless-lang", "js")), body)
    sent = messages_steps(
        past,
        lambda id_, text: {"type": "tool_result", "tool_use_id": id_, "content": [text_part(text)] if text else []},
        before=[{"type": "thinking", "thinking": "", "signature": ""}],
    )
    body = {
        "model": MODEL,
        "system": [text_part(sample.system, **_EPHEMERAL)],
        "messages": [{"role": "user", "content": content}, *sent],
        "tools": sample.tools(_named),
        "max_tokens": 32000,
        "stream": True,
        "thinking": {"type": "enabled", "budget_tokens": 16000},
    }
    return sample.request(protocol, turn, anthropic(agent, "bearer:sk-1"), body)


def hermes(protocol: str, turn: int = 1) -> AgentRequest:
    """Return a request of Hermes Agent: 16 tools; results are JSON in a string."""
    names = {
        "terminal": "command:str background?:bool timeout?:int workdir?:str pty?:bool",
        "process": "action:enum session_id?:str data?:str",
        "read_file": "path:str offset?:int limit?:int",
        "write_file": "path:str content:str",
        "patch": "mode?:enum path?:str old_string?:str new_string?:str patch?:str",
        "search_files": "pattern:str target?:enum path?:str limit?:int",
        **{f"browser_{verb}": "ref:str text?:str" for verb in ("navigate", "click", "type", "scroll", "snapshot")},
        "memory": "action:enum target:str content?:str",
        "todo": "todos?:todos merge?:bool",
        "clarify": "question:str choices?:strs",
        "delegate_task": "goal?:str context?:str toolsets?:strs",
        "session_search": "query:str limit?:int",
    }
    sample = Sample(
        "hermes",
        names,
        39_000,
        prose("You are an assistant with a memory", 7_000),
        (TASK,),
        steps_of("call_", "read_file", "search_files", "terminal", path="path", pattern="pattern", command="command"),
        ("terminal", '{"command": "printf \'%s\\\\n\' \\"é\\" | tee </dev/null", "timeout": 180}'),
    )
    agent, past = "HermesAgent/0.19", sample.past(turn)
    if protocol == "chat":
        sent = chat_steps(
            past,
            lambda text, calls: {"role": "assistant", "content": text, "reasoning_content": " ", "tool_calls": calls},
            lambda id_, name, text: {
                "role": "tool",
                "name": name,
                "tool_name": name,
                "tool_call_id": id_,
                "content": text,
            },
        )
        head = [{"role": "system", "content": sample.system}, {"role": "user", "content": TASK}]
        body: dict[str, Any] = {"model": MODEL, "messages": [*head, *sent], "tools": sample.tools(function), **_STREAM}
        return sample.request(protocol, turn, browser(agent, "no-key-required"), body)
    if protocol == "messages":
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": TASK}, *messages_steps(past, _plain_result)],
            "max_tokens": 16384,
            "system": sample.system,
            "tools": sample.tools(_named),
            "tool_choice": {"type": "auto"},
            "stream": True,
        }
        return sample.request(protocol, turn, anthropic(agent), body)
    sent = responses_steps(past, lambda text: {"role": "assistant", "content": text}, _plain_call, _plain_output)
    body = {
        "model": MODEL,
        "instructions": sample.system,
        "input": [{"role": "user", "content": TASK}, *sent],
        "tools": sample.tools(lambda *tool: _flat(*tool, strict=False)),
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "medium", "summary": "auto"},
        "stream": True,
    }
    return sample.request(protocol, turn, browser(agent, "no-key-required"), body)


def cn(protocol: str, turn: int = 1) -> AgentRequest:
    """Return a request of Continue's command line: 11 small tools."""
    names = {
        "Read": "filepath:str",
        "List": "dirpath:str",
        "Search": "pattern:str path?:str file_pattern?:str",
        "Bash": "command:str",
        "Fetch": "url:str",
        "Write": "filepath:str content:str",
        "Edit": "file_path:str old_string:str new_string:str replace_all?:bool",
        "MultiEdit": "file_path:str edits:todos",
        "Checklist": "checklist:str",
        "Status": "status:str",
        "Exit": "",
    }
    sample = Sample(
        "cn",
        names,
        6_000,
        prose("You are an agent in a command line", 1_000),
        (TASK,),
        steps_of("call_", "Read", "Search", "Bash", path="filepath", pattern="pattern", command="command"),
        ("Exit", "{}"),
    )
    past = sample.past(turn)
    if protocol == "chat":
        sent = chat_steps(
            past,
            lambda text, calls: {"role": "assistant", "content": text, "tool_calls": calls},
            lambda id_, _, text: {"role": "tool", "content": text, "tool_call_id": id_},
        )
        head = [{"role": "system", "content": sample.system}, {"role": "user", "content": TASK}]
        body: dict[str, Any] = {"messages": [*head, *sent], "model": MODEL, "tools": sample.tools(function), **_STREAM}
        return sample.request(protocol, turn, browser("cn/1.5", "sk-1"), body)
    body = {
        "model": MODEL,
        "max_tokens": 4096,
        "messages": [{"role": "user", "content": [text_part(TASK)]}, *messages_steps(past, _plain_result)],
        "system": [text_part(sample.system, **_EPHEMERAL)],
        "tools": sample.tools(_named),
        "stream": True,
    }
    return sample.request(protocol, turn, anthropic("cn/1.5"), body)


def pi(protocol: str, turn: int = 1) -> AgentRequest:
    """Return a request of pi: four tools, user content as an array, `strict`, `eager_input_streaming`."""
    names = {
        "read": "path:str offset?:num limit?:num",
        "bash": "command:str timeout?:num",
        "edit": "path:str edits:todos",
        "write": "path:str content:str",
    }
    sample = Sample(
        "pi",
        names,
        3_000,
        prose("You are an expert coding assistant", 2_000),
        (TASK,),
        steps_of("call_", "read", "bash", "bash", path="path", pattern="command", command="command"),
        ("bash", '{"command":"ls -la \\"$HOME\\"","timeout":1.50}'),
    )
    agent, past = "pi/0.73", sample.past(turn)
    if protocol == "chat":
        sent = chat_steps(
            past,
            lambda text, calls: {"role": "assistant", "content": text or None, "tool_calls": calls},
            lambda id_, _, text: {"role": "tool", "content": text, "tool_call_id": id_},
        )
        head = [{"role": "system", "content": sample.system}, {"role": "user", "content": [text_part(TASK)]}]
        tools = sample.tools(lambda *tool: function(*tool, strict=False))
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [*head, *sent],
            **_STREAM,
            "store": False,
            "max_completion_tokens": 32000,
        }
        return sample.request(protocol, turn, browser(agent, "sk-1"), {**body, "tools": tools})
    if protocol == "messages":
        sent = messages_steps(past, lambda *result: {**_plain_result(*result), "is_error": False})
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": [text_part(TASK, **_EPHEMERAL)]}, *sent],
            "max_tokens": 32000,
            "stream": True,
            "system": [text_part(sample.system, **_EPHEMERAL)],
            "tools": sample.tools(lambda *tool: _named(*tool, eager_input_streaming=True)),
            "thinking": {"type": "disabled"},
        }
        return sample.request(protocol, turn, anthropic(agent, "bearer:sk-1"), body)
    sent = responses_steps(
        past,
        lambda text: {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
            "status": "completed",
            "id": "msg_0a",
        },
        lambda *call: {**_plain_call(*call), "id": f"fc_{call[0][5:]}"},
        _plain_output,
    )
    user = {"role": "user", "content": [{"type": "input_text", "text": TASK}]}
    body = {
        "model": MODEL,
        "input": [{"role": "developer", "content": sample.system}, user, *sent],
        "stream": True,
        "store": False,
        "max_output_tokens": 32000,
        "tools": sample.tools(lambda *tool: _flat(*tool, strict=False)),
        "reasoning": {"effort": "none"},
    }
    return sample.request(protocol, turn, browser(agent, "sk-1"), body)


# --- libraries --------------------------------------------------------------------------------------------------------

_FEW = {
    "get_forecast": "city:str days?:int units?:maybe",
    "final_answer": "answer:str",
    "lookup": "symbol:str",
    "run": "command:str",
}


def _library(agent: str, call: tuple[str, str]) -> Sample:
    return Sample(
        agent,
        _FEW,
        2_000,
        prose(f"You are used through {agent}", 600),
        (TASK,),
        steps_of("call_", "lookup", "get_forecast", "run", path="symbol", pattern="city", command="command"),
        call,
    )


def pydantic_ai(protocol: str, turn: int = 1) -> AgentRequest:
    """Return a request of pydantic-ai: `tool_result.content` is a list; Responses messages without `type`, items
    without ids.
    """
    sample = _library("pydantic_ai", ("get_forecast", '{"city":"Zürich \\"ZH\\"","days":3,"units":null}'))
    agent, past = "pydantic-ai/2.68.0", sample.past(turn)
    if protocol == "chat":
        sent = chat_steps(
            past,
            lambda text, calls: {"role": "assistant", "content": text or None, "tool_calls": calls},
            lambda id_, _, text: {"role": "tool", "tool_call_id": id_, "content": text},
        )
        head = [{"role": "system", "content": sample.system}, {"role": "user", "content": TASK}]
        body: dict[str, Any] = {
            "messages": [*head, *sent],
            "model": MODEL,
            "tool_choice": "auto",
            "tools": sample.tools(function),
        }
        return sample.request(protocol, turn, browser(agent, "sk-1"), {**body, **_STREAM})
    if protocol == "messages":
        sent = messages_steps(
            past,
            lambda id_, text: {
                "tool_use_id": id_,
                "type": "tool_result",
                "content": [text_part(text)] if text else [],
                "is_error": False,
            },
        )
        body = {
            "max_tokens": 4096,
            "messages": [{"role": "user", "content": [text_part(TASK)]}, *sent],
            "model": MODEL,
            "stream": True,
            "system": sample.system,
            "tool_choice": {"type": "auto"},
            "tools": sample.tools(_named),
        }
        return sample.request(protocol, turn, anthropic(agent), body)
    sent = responses_steps(past, lambda text: {"role": "assistant", "content": text}, _plain_call, _plain_output)
    body = {
        "input": [{"role": "user", "content": TASK}, *sent],
        "instructions": sample.system,
        "model": MODEL,
        "tool_choice": "auto",
        "tools": sample.tools(lambda *tool: _flat(*tool, strict=False)),
        "stream": True,
    }
    return sample.request(protocol, turn, browser(agent, "sk-1"), body)


def smolagents(turn: int = 1) -> AgentRequest:
    """Return a request of smolagents.

    No message has the role `tool`; calls and observations are text. A call is required, with stop strings.
    """
    sample = _library("smolagents", ("final_answer", '{"answer": "Observation: it is \\"done\\""}'))
    past = sample.past(turn)
    spoken: list[str] = []
    sent: list[Json] = []
    for step in past:
        calls = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments, _ in step.calls
        ]
        written = f"{step.text}\nCalling tools:\n{calls}"
        observed = "Observation:\n" + "\n".join(result or "(nothing)" for *_, result in step.calls)
        spoken += [written, observed]
        sent.append({"role": "assistant", "content": [text_part(written)]})
        sent.append({"role": "user", "content": [text_part(observed)]})
    head = [
        {"role": "system", "content": [text_part(sample.system)]},
        {"role": "user", "content": [text_part(f"New task:\n{TASK}")]},
    ]
    body: dict[str, Any] = {
        "messages": [*head, *sent],
        "stop": ["Observation:", "Calling tools:"],
        "model": MODEL,
        "tools": sample.tools(function),
        "tool_choice": "required",
        **_STREAM,
    }
    made = sample.request("chat", turn, browser("smolagents", "sk-1"), body)
    return AgentRequest(
        made.agent, made.protocol, turn, body, made.headers, made.tools, made.system, (TASK, *spoken), (), made.call,
        body["tools"],
    )  # fmt: skip


def litellm(protocol: str, turn: int = 1) -> AgentRequest:
    """Return a request of litellm, or any client that replays a whole SDK message: null keys, tools of type
    `custom`.
    """
    sample = _library("litellm", ("lookup", '{"symbol":"a.b[\'c\']"}'))
    past = sample.past(turn)
    if protocol == "chat":
        sent = chat_steps(
            past,
            lambda text, calls: {
                "content": text or None,
                "refusal": None,
                "role": "assistant",
                "annotations": [],
                "audio": None,
                "function_call": None,
                "tool_calls": [{**call, "index": i} for i, call in enumerate(calls)],
                "provider_specific_fields": None,
                "thinking_blocks": None,
            },
            lambda id_, name, text: {"role": "tool", "tool_call_id": id_, "name": name, "content": text},
        )
        cached = [text_part(sample.system, **_EPHEMERAL)]
        head = [{"role": "system", "content": cached}, {"role": "user", "content": TASK, "name": None}]
        body: dict[str, Any] = {"model": MODEL, "messages": [*head, *sent], "tools": sample.tools(function), **_STREAM}
        more = {"tool_choice": None, "parallel_tool_calls": None, "n": None, "stop": None, "user": "u-1"}
        return sample.request(protocol, turn, browser("litellm/1.83.0", "sk-1"), {**body, **more})
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": [text_part(TASK)]}, *messages_steps(past, _plain_result)],
        "system": [text_part(sample.system, **_EPHEMERAL)],
        "tools": sample.tools(lambda *tool: _named(*tool, type="custom")),
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
        "max_tokens": 4096,
        "stream": True,
    }
    return sample.request(protocol, turn, anthropic("litellm/1.83.0"), body)


# --- agents with typed tools ------------------------------------------------------------------------------------------


def typed_messages(turn: int = 1) -> AgentRequest:
    """Return a Messages request with every kind of tool that the client runs."""
    system, task = prose("Desk of an assistant", 900), "Read the news, and note what matters."
    offered: list[Json] = [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 20_000},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "computer_toolset_20260801", "configs": {"zoom": {"enabled": False}}},
        {"type": "browser_toolset_20260801"},
        {"type": "web_search_20260318", "name": "web_search", "max_uses": 3},
    ]
    tab = {
        "type": "browser_state",
        "tabs": [{"tab_id": "t1", "title": "News", "url": "https://n.test/", "active": True}],
    }
    past: list[Json] = [
        {
            "role": "assistant",
            "content": [
                text_part("I open the page."),
                {
                    "type": "tool_use",
                    "id": "toolu_01typed",
                    "name": "navigate",
                    "input": {"url": "n.test"},
                    "toolset_name": "browser",
                    "caller": {"type": "direct"},
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_01typed", "content": [tab], "toolset_name": "browser"}
            ],
        },
    ]
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": [text_part(task)]}, *(past if turn > 1 else ())],
        "system": [text_part(system)],
        "tools": offered,
        "max_tokens": 4096,
        "stream": True,
    }
    history = (
        ("call", "browser.navigate", {"url": "n.test"}),
        ("result", "browser.navigate", "tab t1 (active): News https://n.test/"),
    )
    return AgentRequest(
        "typed",
        "messages",
        turn,
        body,
        anthropic("Anthropic/Python 2.12.0"),
        ("bash", "str_replace_based_edit_tool", "memory", "computer.scroll", "browser.navigate", "browser.key"),
        (system,),
        (task, "I open the page.") if turn > 1 else (task,),
        history if turn > 1 else (),
        ("bash", '{"command":"date -u"}'),
        offered,
    )


def typed_responses(turn: int = 1) -> AgentRequest:
    """Return a Responses request with every kind of tool that the client runs, and a function."""
    system, task = prose("Desk of an engineer", 900), "Make the tests green."
    offered: list[Json] = [
        {"type": "function", "name": "note", "parameters": schema("text:str"), "strict": True},
        {"type": "shell", "environment": {"type": "local"}},
        {"type": "local_shell"},
        {"type": "apply_patch"},
        {"type": "computer"},
        {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": schema("goal:str")},
        {"type": "code_interpreter", "container": {"type": "auto"}},
    ]
    fix = {"type": "update_file", "path": "shapes.py", "diff": "@@ def area(r):\n-\treturn 3\n+\treturn math.pi"}
    run = {"stdout": "1 failed\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 1}}
    past: list[Json] = [
        {"type": "shell_call", "call_id": "call_typed1", "action": {"commands": ["make test"]}, "status": "completed"},
        {"type": "shell_call_output", "call_id": "call_typed1", "output": [run], "status": "completed"},
        {"type": "apply_patch_call", "call_id": "call_typed2", "operation": fix, "status": "completed"},
        {"type": "apply_patch_call_output", "call_id": "call_typed2", "status": "completed", "output": "M shapes.py"},
    ]
    body: dict[str, Any] = {
        "model": MODEL,
        "instructions": system,
        "input": [{"role": "user", "content": task}, *(past if turn > 1 else ())],
        "tools": offered,
        "store": False,
        "stream": True,
    }
    history = (
        ("call", "shell", {"commands": ["make test"]}),
        ("result", "shell", "1 failed\nexit code 1"),
        ("call", "apply_patch", fix),
        ("result", "apply_patch", "M shapes.py"),
    )
    return AgentRequest(
        "typed",
        "responses",
        turn,
        body,
        browser("OpenAI/Python 3.54.0", "sk-local"),
        ("note", "shell", "local_shell", "apply_patch", "computer", "tool_search"),
        (system,),
        (task,),
        history if turn > 1 else (),
        ("note", '{"text":"green"}'),
        offered,
    )


ALL = ("chat", "messages", "responses")


def every(turn: int) -> list[AgentRequest]:
    """Return all requests of this turn."""
    two = ALL[:2]
    return [
        claude_code(turn),
        claude_code(turn, tools=24),
        codex(turn),
        codex_additional_tools(turn),
        *(build(protocol, turn) for build in (opencode, hermes, pi, pydantic_ai) for protocol in ALL),
        *(build(protocol, turn) for build in (qwen_code, cn, litellm) for protocol in two),
        smolagents(turn),
        typed_messages(turn),
        typed_responses(turn),
    ]
