"""Fifty turns of one conversation, in each client protocol, whose later requests do not repeat the tools.

The upstream is a model with a perfect memory: it reads its prompt, finds the next call's arguments in the last result,
and checks that everything that ever happened is in the prompt once and in order, and that the prompt only ever grows.
"""

import itertools
import json
import re
from typing import Any

import pytest
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dialects import CLIENTS, PATHS, Ask, Got, read, said, write
from support.sweeps import alternating, each

from statemachine import Call
from statemachine import write as write_calls
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.interfaces import Services
from streamtool.middleware import ToolMiddleware
from streamtool.prompting import transcript_key
from streamtool.protocols.registry import client_protocol
from streamtool.settings import Settings
from streamtool.testing import stream_asgi

TURNS = 50
SCHEMA = {
    "type": "object",
    "properties": {"found": {"type": "string"}, "step": {"type": "string"}, "note": {"type": "string"}},
    "required": ["found", "step"],
}
TOOLS = (("look", "Looks further.", SCHEMA), ("weigh.it", "Weighs.", SCHEMA), ("Never-Used", "Rests.", SCHEMA))
NOTES = ("", 'says "so"\n\tand more', "läuft \\ 🙂", "</tool_call> is what it says")


def prompt_of(body: Any) -> str:
    """Return the prompt as one text, so that it can be compared with a prefix of a longer one."""
    if "prompt" in body:
        return str(body["prompt"])
    return "".join(f"[{message['role']}]{message['content']}" for message in body["messages"])


def reply_of(turn: int, found: str) -> tuple[str, int]:
    """Return the model's reply in this turn, in one of several styles, and its number of calls."""
    count = 1 + (turn % 5 == 2) + (turn % 10 == 7)
    names = ("look", "weigh.it")
    calls = [
        Call(
            names[(turn + i) % 2],
            json.dumps(
                {"found": found, "step": f"s{turn}.{i}", "note": NOTES[(turn + i) % len(NOTES)]},
                ensure_ascii=turn % 2 == 0,
            ),
        )
        for i in range(count)
    ]
    form = ("tool_call", "invoke", "fenced", "labelled", "qwen3_coder")[turn % 5] if turn % 3 == 0 else "tool_call"
    text = write_calls(calls, form)
    return (f"I look further, {turn}.\n\n{text}" if turn % 4 == 1 else text), count


@define
class Model:
    """The upstream."""

    protocol: str
    exact: bool
    """The model's last reply, which has to be in the next prompt verbatim."""
    turn: int = 0
    before: str = ""
    steps: list[str] = field(factory=list)
    """Everything that has to be in the prompt once, in this order."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        prompt = prompt_of(body)
        assert prompt.startswith(self.before), self.turn
        places = [prompt.find(step) for step in self.steps]
        assert -1 not in places
        assert places == sorted(places)
        assert all(prompt.count(step) == 1 for step in self.steps)
        assert "tools" not in body
        found = re.findall(r"\bt\d+\b", prompt)
        reply, count = reply_of(self.turn, found[-1]) if self.turn < TURNS else ("All is found.", 0)
        self.steps += [f"s{self.turn}.{i}" for i in range(count)]
        self.steps += [f"r{self.turn}.{i} " for i in range(count)]
        start = "" if "prompt" in body else "[assistant]"
        self.before = prompt + start + reply if self.exact else prompt
        self.turn += 1
        script = said(self.protocol, reply, size=7)
        head = [(b"content-type", script.content_type.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for step in script.steps:
            await send({"type": "http.response.body", "body": step, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def answers(turn: int, ids: tuple[str, ...]) -> list[Any]:
    """Return the results of a turn's calls: the last one names the next arguments; some fail, some are short."""
    kind = "error" if turn % 7 == 3 else "result"
    out: list[Any] = []
    for i, id_ in enumerate(ids):
        hint = f" gives t{turn + 1}" if i == len(ids) - 1 else ""
        out.append((kind, id_, f"r{turn}.{i} {hint}"))
    return out


@pytest.mark.anyio
@each("client", CLIENTS)
@each("protocol", ["chat", "completions"])
@alternating
async def test_fifty_turns_without_repeated_tools(client: str, protocol: str):
    model = Model(protocol, exact=True)
    app = ToolMiddleware(model, app_protocol=protocol)
    turns: list[Any] = [("system", "Be thorough."), ("user", "Start with t0.")]
    for turn in range(TURNS + 1):
        body = write(client, Ask(tuple(turns), TOOLS if turn == 0 else (), stream=turn % 3 != 1))
        body["store"] = True
        async with stream_asgi(app, PATHS[client], body=json.dumps(body).encode()) as reply:
            data = b"".join([piece async for piece in reply])
        got = read(client, data, stream=body["stream"])
        assert got.error is None, got.error
        if turn == TURNS:
            assert (got.parts, got.reason) == (("All is found.",), "stop")
            return
        calls = [part for part in got.parts if isinstance(part, tuple)]
        assert (got.reason, len(calls)) == ("calls", reply_of(turn, "")[1])
        assert all(json.loads(arguments)["found"] == f"t{turn}" for _, arguments in calls)
        turns += [("assistant", part) for part in got.parts if isinstance(part, str)]
        turns += [
            ("call", id_, name, json.loads(arguments)) for id_, (name, arguments) in zip(got.ids, calls, strict=True)
        ]
        turns += answers(turn, got.ids)


@pytest.mark.anyio
@pytest.mark.parametrize("client", CLIENTS)
async def test_silent_results_and_no_store(client: str):
    """Without the store the wording is ours, the prompt still only grows, and empty results are marked as empty."""
    model = Model("chat", exact=False)
    app = ToolMiddleware(model, app_protocol="chat", settings=Settings(verbatim=False))
    turns: list[Any] = [("user", "Start with t0.")]
    for _ in range(12):
        body = write(client, Ask(tuple(turns), TOOLS))
        async with stream_asgi(app, PATHS[client], body=json.dumps(body).encode()) as reply:
            data = b"".join([piece async for piece in reply])
        got = read(client, data, stream=True)
        calls = [part for part in got.parts if isinstance(part, tuple)]
        assert all(json.loads(arguments)["found"] == "t0" for _, arguments in calls)
        turns += [("assistant", part) for part in got.parts if isinstance(part, str)]
        turns += [("call", id_, name, json.loads(args)) for id_, (name, args) in zip(got.ids, calls, strict=True)]
        turns += [("result", id_, "") for id_ in got.ids]
        model.steps = [step for step in model.steps if not step.startswith("r")]
    assert model.before.count("(no output)") == sum(reply_of(turn, "")[1] for turn in range(11))


class Shelf:
    """Stores values in a dict."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def recall(self, id: str, /) -> bytes | None:
        return self.kept.get(id)

    demand = recall

    def remember(self, id: str, value: bytes, /) -> None:
        self.kept[id] = value


arguments = st.fixed_dictionaries({"found": st.text(max_size=12), "step": st.text(max_size=3)}).map(json.dumps)
calls = st.lists(st.builds(Call, st.sampled_from([tool[0] for tool in TOOLS]), arguments), max_size=3)
steps = st.tuples(
    st.sampled_from(["tool_call", "invoke", "labelled", "fenced", "glm45"]),
    calls,
    st.sampled_from(["", "I see.\n", "So:\n\n"]),
    st.lists(st.text(max_size=10), min_size=3, max_size=3),
    st.booleans(),
    st.sampled_from(["auto", "required", "look"]),
)


@given(st.lists(steps, min_size=1, max_size=6), st.sampled_from(CLIENTS), st.booleans(), st.booleans())
@settings(max_examples=20, deadline=None)
def test_prompt_and_reply_are_a_prefix_of_the_next_prompt(
    plan: list[Any], client: str, parallel: bool, system_role: bool
):
    shelf, turns, before = Shelf(), [("user", "Begin.")], ""
    ids = iter(range(10_000))
    for form, asked, text, results, repeats, wanted in plan:
        called = asked if parallel else asked[:1]
        choice = wanted if called and (wanted != "look" or {call.name for call in called} == {"look"}) else "auto"
        offered = TOOLS if repeats or before == "" or choice != "auto" or not parallel else ()
        body = {**write(client, Ask(tuple(turns), offered, choice=choice, parallel=parallel)), "store": True}
        exchange = Exchange(
            Settings(app_protocol="chat", refusals="pass", system_role=system_role),
            client_protocol(client),
            json.dumps(body).encode(),
            (),
            new_id=lambda prefix: f"{prefix}{next(ids)}",
            now=0,
            services=Services(store=shelf),
        )
        prompt = prompt_of(json.loads(exchange.request().body))
        assert prompt.startswith(before)
        reply = text + (write_calls(called, form) if called else "Nothing to do.")
        out = exchange.respond(200, ((b"content-type", b"text/event-stream"),))
        out += b"".join(exchange.feed(step) for step in said("chat", reply, size=5).steps if isinstance(step, bytes))
        got = read(client, out + exchange.close(), stream=True)
        exchange.remember()
        made = [part for part in got.parts if isinstance(part, tuple)]
        assert [name for name, _ in made] == [call.name for call in called]
        if not called:
            return
        before = f"{prompt}[assistant]{reply}"
        turns += [("assistant", part) for part in got.parts if isinstance(part, str)]
        turns += [("call", id_, name, json.loads(args)) for id_, (name, args) in zip(got.ids, made, strict=True)]
        turns += [("result", id_, results[i]) for i, id_ in enumerate(got.ids)]


@pytest.mark.anyio
@each("client", CLIENTS)
@each("change", ["nothing", "arguments", "name", "text", "another client"])
@alternating
async def test_stored_text_is_not_reused_for_a_message_with_another_meaning(client: str, change: str):
    written = 'So.\n<tool_call>\n{ "name" : "look", "arguments" : {"found": "a",   "step": "b"} }\n</tool_call>'
    prompts = []

    async def model(scope: Any, receive: Any, send: Any) -> None:
        prompts.append(prompt_of(json.loads((await receive())["body"])))
        script = said("chat", written if len(prompts) == 1 else "Done.")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"".join(script.steps), "more_body": False})

    app = ToolMiddleware(model, app_protocol="chat")
    name, found, text, key = "look", "a", "So.", "one"
    got = Got((), None)
    for again in (False, True):
        turns: list[Any] = [("user", "Begin.")]
        if again:
            name = "weigh.it" if change == "name" else name
            found = "other" if change == "arguments" else found
            text = "Otherwise." if change == "text" else text
            key = "two" if change == "another client" else key
            call = ("call", got.ids[0], name, {"found": found, "step": "b"})
            turns += [("assistant", text), call, ("result", got.ids[0], "r")]
        body = {**write(client, Ask(tuple(turns), TOOLS)), "store": True}
        headers = [(b"authorization", f"Bearer {key}".encode())]
        async with stream_asgi(app, PATHS[client], body=json.dumps(body).encode(), headers=headers) as reply:
            got = read(client, b"".join([piece async for piece in reply]), stream=True)
    assert (written in prompts[1]) == (change == "nothing")
    assert f'<invoke name="{name}">' in prompts[1] or change == "nothing"


def conversation(shelf: Shelf, *turns: Any, tools: tuple[Any, ...] = ()) -> Exchange:
    ids = itertools.count()
    body = json.dumps(write("chat", Ask(turns, tools))).encode()
    return Exchange(
        Settings(),
        client_protocol("chat"),
        body,
        (),
        new_id=lambda prefix: f"{prefix}own{next(ids)}",
        now=0,
        services=Services(store=shelf),
    )


def test_an_id_chosen_by_the_model_does_not_lead_to_another_conversation():
    """Models use counters as ids: `call_1` is the first call in any conversation."""
    shelf = Shelf()
    first = conversation(shelf, ("user", "Mine."), tools=TOOLS)
    first.request()
    first.respond(200, ())
    reply = '<think>A secret.</think><tool_call>{"id": "call_1", "name": "look", "arguments": {}}</tool_call>'
    out = b"".join(first.feed(step) for step in said("chat", reply).steps if isinstance(step, bytes)) + first.close()
    first.remember()
    assert read("chat", out, stream=True).ids == ("call_1",)
    second = conversation(shelf, ("user", "Yours."), ("call", "call_1", "look", {}), ("result", "call_1", "ok"))
    prompt = prompt_of(json.loads(second.request().body))
    assert "secret" not in prompt
    assert "weigh.it" not in prompt


@pytest.mark.parametrize("kept", [b"{}", b"no JSON", b'{"format": 1}', b"\xff"])
def test_entries_of_another_version_are_ignored(kept: bytes):
    shelf = Shelf()
    shelf.remember(transcript_key("call_1"), kept)
    asked = conversation(shelf, ("user", "Go."), ("call", "call_1", "look", {}), ("result", "call_1", "ok"))
    assert '<invoke name="look">' in prompt_of(json.loads(asked.request().body))
