"""`python -m tools.pictures`: the pictures in the docs, drawn from real runs; tests keep them up to date.

`timeline.svg`: one call, and when a client knows its arguments. streamtool runs here; the parser that waits for the end
of the call is SGLang's detector, as measured by `benchmarks/compare.py` (`docs/plots/figures.json`). `demo.svg`: the
first reply in `streamtool demo`, animated. `deltas.svg`: each delta, and the parts that the client receives for it.
`resumed.svg`: a call whose upstream dies, and what each side writes and receives. `states.svg`: the states of the
parser.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from attrs import frozen

import statemachine
from statemachine.machine.states import CALLS, Input, Move, State, rows
from streamtool.core.errors import UpstreamError
from streamtool.core.json_value import Json
from streamtool.exchange.exchange import Exchange
from streamtool.inspector.playground import pieces, play
from streamtool.protocols.registry import client_protocol
from streamtool.settings import Settings
from tools.svg import WIDE, label, mono, number, picture, rect

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "docs" / "pictures"
FIGURES: Final = ROOT / "docs" / "plots" / "figures.json"
PACE: Final = 25
"""Deltas that a model writes per second."""
CUT: Final = 4
"""Characters per delta."""

# --- one call, streamed and not --------------------------------------------------------------------------------------

_WORDS: Final = 'The parser reads each delta once, "as it comes",\nand tells what it knows.\t'
CALL: Final = f'[write_file(path="notes.md", content={json.dumps(_WORDS * 6)})]'
"""The call that `benchmarks/readers.py` gives to both parsers."""


def measured() -> Mapping[str, Any]:
    """Return the results of `benchmarks/compare.py`."""
    found: Mapping[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))["readers"]
    return found


def known_here() -> list[int]:
    """Return, for each delta of the call, how many characters of the call's arguments a streamtool client has received
    by then.
    """
    parser = statemachine.Parser({"write_file": {"type": "object"}}, formats=["pythonic"])
    known, found = 0, []
    for piece in pieces(CALL, CUT):
        known += sum(len(event.text) for event in parser.feed(piece) if isinstance(event, statemachine.ArgumentsDelta))
        found.append(known)
    return found


def timeline() -> str:
    """Draw when the client receives the arguments of a call: while the model writes them, or only at the end of the
    call.
    """
    found = measured()
    theirs = found["SGLang, pythonic"]
    written, ours = theirs["timeline"]["written"], known_here()
    left, right, top, lane, gap = 172, 830, 56, 58, 26
    count, most = len(written), written[-1]

    def x(step: float) -> float:
        return left + (right - left) * step / count

    def area(known: Sequence[int], y: float, fill: str) -> str:
        """Draw the number of known characters over time."""
        corners = [(0.0, 0.0)]
        for step, now in enumerate(known):
            corners += [(step, corners[-1][1]), (step, now / most)]
        corners += [(count, corners[-1][1]), (count, 0)]
        path = " ".join(f"{number(x(step))},{number(y + lane - part * lane)}" for step, part in corners)
        return f'<polygon points="{path}" fill="var(--{fill})"/>'

    parts = [label(20, 30, "One call of 500 characters at 25 deltas per second: progress on each side", "title")]
    lanes = (
        ("the model writes", written, "syntax", ""),
        ("streamtool sends", ours, "call", ""),
        (f"SGLang {theirs['version']} sends", theirs["timeline"]["known"], "text", "nothing until the call ends"),
    )
    for place, (name, known, fill, waits) in enumerate(lanes):
        y = top + place * (lane + gap)
        parts += [label(20, y + lane / 2 + 5, name), rect(left, y, right - left, lane, "line")]
        first = next(step for step, now in enumerate(known) if now)
        if first > 1:
            parts.append(rect(left, y, x(first) - left, lane, "hold"))
        parts.append(area(known, y, fill))
        if waits:
            parts.append(label(left + 14, y + lane / 2 + 5, waits))
        told = f"first argument after {(first + 1) / PACE:.1f} s" if place else ""
        parts.append(label(right, y + lane + 17, told, "small faint", ' text-anchor="end"') if told else "")
    base = top + 3 * (lane + gap) + 4
    for second in range(int(count / PACE) + 1):
        parts.append(label(x(second * PACE), base + 10, f"{second} s", "small faint", ' text-anchor="middle"'))
    return picture(
        860, base + 26, "A call while it is written",
        "Three lanes over five seconds. The model writes all the time. streamtool sends each piece immediately. "
        "A parser that buffers sends nothing for five seconds, and then everything in one piece.",
        filter(None, parts),
    )  # fmt: skip


# --- a call that is continued ----------------------------------------------------------------------------------------

BROKEN: Final = '<tool_call>{"name": "read_file", "arguments": {"path": "/src/main.py"}}</tool_call>'
DEATH: Final = BROKEN.index("main") + 2
"""Number of characters that the first upstream writes."""


@frozen
class Resumed:
    """A call that a second upstream continues."""

    prompt: str
    """The part of the reply that the second upstream's prompt ends with."""
    rest: str
    """The text that the second upstream writes."""
    before: str
    """The arguments that the client receives from the first upstream."""
    after: str
    """The arguments that the client receives from the second upstream."""


def resumed_here() -> Resumed:
    """Run an exchange whose upstream dies inside the call."""
    tool = {"type": "function", "function": {"name": "read_file", "parameters": {"type": "object", "properties": {}}}}
    asked = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Read it."}], "tools": [tool]}
    given = Settings(app_protocol="completions", chat_template="none", format="tool_call")
    body = json.dumps(asked).encode()
    exchange = Exchange(given, client_protocol("chat"), body, (), new_id=lambda prefix: prefix, now=1)

    def write(text: str) -> str:
        exchange.respond(200, ())
        choices = ([{"index": 0, "text": piece, "finish_reason": None}] for piece in pieces(text, CUT))
        out = b"".join(exchange.feed(b"data: %b\n\n" % json.dumps({"choices": one}).encode()) for one in choices)
        chunks = [json.loads(line[6:]) for line in out.split(b"\n") if line.startswith(b"data: {")]
        calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
        return "".join(call["function"]["arguments"] for call in calls)

    exchange.request()
    before = write(BROKEN[:DEATH])
    exchange.fail(UpstreamError("the connection broke"))
    prompt = json.loads(exchange.request().body)["prompt"].rpartition("<|im_start|>assistant\n")[2]
    rest = BROKEN[len(prompt) :]
    return Resumed(prompt, rest, before, write(rest))


def resumed() -> str:
    """Draw which part of a call each upstream writes, and which part of it the client receives from each."""
    found = resumed_here()
    seam, begin = len(found.prompt), BROKEN.index(found.before)
    again, left, top, lane = BROKEN[seam:DEATH], 190, 72, 34
    lanes = (
        ("the first upstream writes", ((0, BROKEN[:DEATH], "syntax"),)),
        ("the second one is given", ((0, found.prompt, "faint"),)),
        ("it writes", ((seam, again, "head"), (DEATH, found.rest[len(again) :], "text"))),
        ("the client receives", ((begin, found.before, "call"), (begin + len(found.before), found.after, "text"))),
    )
    bottom = top + len(lanes) * lane
    parts = [label(20, 30, "A call whose upstream dies, and another one continues it", "title")]
    for at, name, anchor in ((seam, "seam", "end"), (DEATH, "death", "start")):
        x = left + WIDE * at
        line = f'x1="{number(x)}" x2="{number(x)}" y1="{top - 22}" y2="{bottom - 12}"'
        parts.append(f'<line {line} stroke="var(--head)" stroke-dasharray="3 3"/>')
        parts.append(label(x, top - 26, name, "small faint", f' text-anchor="{anchor}"'))
    for place, (name, written) in enumerate(lanes):
        y = top + place * lane + 5
        parts.append(label(20, y, name))
        parts += [mono(left + WIDE * at, y, text, fill) for at, text, fill in written if text]
    parts.append(
        label(20, bottom + 8, "Red: written again from the seam, compared, and not sent twice.", "small faint")
    )
    return picture(
        860, bottom + 24, "A call that is continued",
        "Four lanes. The first upstream writes a call until it dies inside a word. The second one is given the text "
        "up to the seam before that word, writes the word again, and then the rest. The client receives one call.",
        parts,
    )  # fmt: skip


# --- the demo, moving ------------------------------------------------------------------------------------------------

REPLY: Final = (
    'Let me look that up.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
)
SCHEMA: Final = {"get_weather": {"type": "object", "properties": {"city": {"type": "string"}}}}
_STEP: Final = 0.28
"""Seconds between two deltas: slow enough to read."""
_REST: Final = 3.0
"""Seconds of pause before the animation repeats."""
_COLOURS: Final = {"text": "text", "syntax": "syntax", "argument": "call", "repair": "call", "discard": "head"}


def demo() -> str:
    """Draw what the model writes and what the client receives, delta by delta."""
    (reply,) = play({"text": REPLY, "tools": SCHEMA, "formats": None, "cut": 6})["replies"]
    steps = len(reply["steps"])
    whole = steps * _STEP + _REST
    frames: dict[str, str] = {}

    def when(name: str, first: float, last: float | None = None) -> str:
        """Return a style that shows an element from the step `first` until the step `last`, or until the end."""
        begin, end = (100 * step * _STEP / whole for step in (first, steps if last is None else last))
        hidden, seen = "{opacity:0}", "{opacity:1}"
        shown = f"{number(begin)}%{seen}"
        frames[name] = f"@keyframes {name}{{0%{hidden}{number(max(begin - 0.01, 0))}%{hidden}{shown}" + (
            f"100%{seen}}}" if last is None else f"{number(end - 0.01)}%{seen}{number(end)}%{hidden}100%{hidden}}}"
        )
        return f' class="mono a" style="animation-name:{name};'

    parts = [
        label(20, 28, "the model writes", "title"), label(480, 28, "the client receives", "title"),
        '<line x1="460" y1="12" x2="460" y2="160" stroke="var(--edge)"/>',
    ]  # fmt: skip
    parts += _written(reply, when)
    parts += _received(reply, when)
    parts.append(label(20, 186, "yellow: buffered, because it may still be text", "small faint"))
    style = (
        "".join(frames.values())
        + f".a{{animation-duration:{number(whole)}s;animation-iteration-count:infinite;"
        + "animation-timing-function:step-end}"
        + "@media (prefers-reduced-motion:reduce){.a{animation:none!important}.gone{display:none}}"
    )
    return picture(
        900, 200, "streamtool demo",
        "On the left a model writes text and then a call as text, six characters at a time. On the right the client "
        "receives the text immediately, the name of the call as soon as it is known, and then its arguments while "
        "the model writes them.",
        parts, style,
    )  # fmt: skip


def _written(reply: Json, when: Callable[..., str]) -> Iterator[str]:
    row, column = 0, 0
    for start, end, kind, came, left, _ in reply["segments"]:
        for piece in _lines(reply["text"][start:end]):
            if piece == "\n":
                row, column = row + 1, 0
                continue
            x, y = 20 + column * WIDE, 56 + row * 22
            if left != came:
                ground = rect(x, y - 14, len(piece) * WIDE, 19, "hold")
                style = when(f"h{came}x{left}", came, left).replace("mono a", "a gone")
                yield f'<g{style}">{ground}</g>'
            style = when(f"w{came}", came)
            yield (
                mono(x, y, piece, _COLOURS.get(kind, "text"))
                .replace(' class="mono"', "", 1)
                .replace('style="', f"{style.removeprefix(' ')}", 1)
            )
            column += len(piece)


def _lines(text: str) -> Iterator[str]:
    for place, line in enumerate(text.split("\n")):
        if place:
            yield "\n"
        if line:
            yield line


def _received(reply: Json, when: Callable[..., str]) -> Iterator[str]:
    row, column = 0, 0
    for _, step, events in reply["sent"]:
        for event in events:
            fill, told = "text", event.get("text", "")
            match event["type"]:
                case "call_start":
                    row, column, fill, told = row + 2, 0, "call", f"● {event['name']}("
                case "arguments_delta":
                    fill = "call"
                case "call_end":
                    fill, told = "call", ")"
                case _:
                    pass
            for piece in _lines(told):
                if piece == "\n":
                    row, column = row + 1, 0
                    continue
                style = when(f"r{step}", step)
                yield (
                    mono(480 + column * WIDE, 56 + row * 22, piece, fill)
                    .replace(' class="mono"', "", 1)
                    .replace('style="', f"{style.removeprefix(' ')}", 1)
                )
                column += len(piece)


# --- deltas, and the client's parts ----------------------------------------------------------------------------------

DELTAS: Final = (
    *("Let me look.", "\n<tool_call>", '{"name": "get_', 'weather", "argu', 'ments": {"city":', ' "Par', 'is"}'),
    "}\n</tool_call>",
)
"""A reply, cut as a model might write it."""
_LARGE: Final = 9.6
"""Width of a character in this picture, which must be readable on a phone."""


def deltas() -> str:
    """Draw each delta of a reply next to what the client receives for it."""
    parser = statemachine.Parser(SCHEMA)
    left, right, top, height = 12, 232, 50, 40
    parts = [_HEAD, label(left, 28, "the model writes text", "big"), label(right, 28, "the client receives", "big")]
    for row, delta in enumerate(DELTAS):
        y = top + row * height
        events = [_told(event) for event in parser.feed(delta)]
        fill = events[0][2] if events else "syntax"
        x = left + _chip(parts, left, y, delta.replace("\n", "↵"), fill if row == 0 else "syntax")
        parts.append(f'<line x1="{number(x + 8)}" y1="{y + 15}" x2="{right - 10}" y2="{y + 15}" {_ARROW}/>')
        if not events:
            parts.append(label(right, y + 20, "buffered: may become a call", "big faint"))
        kind, text, fill = events[0] if events else ("", "", "")
        if text:
            parts.append(label(right, y + 20, kind, "big faint"))
            _chip(parts, right + 88, y, text, fill)
        if len(events) > 1:
            parts.append(label(right + 140, y + 20, events[1][0], "big faint"))
    return picture(
        476, top + len(DELTAS) * height, "From text to a call",
        "Eight pieces of text that a model writes, each with what the client receives for it: the text immediately, "
        "the name of the call once it is known, and each piece of the arguments as it is written.",
        parts, ".big{font-size:15px}.chip{font-size:16px}",
    )  # fmt: skip


def _told(event: statemachine.Event) -> tuple[str, str, str]:
    """Return the kind of an event, its text and a color."""
    match event:
        case statemachine.TextDelta(text=text):
            return "text", text, "text"
        case statemachine.CallStart(name=name):
            return "call", name, "call"
        case statemachine.ArgumentsDelta(text=text):
            return "arguments", text, "call"
        case _:
            return "end of call", "", ""


def _chip(parts: list[str], x: float, y: float, text: str, fill: str) -> float:
    """Add monospaced text in a frame, and return the width of the frame."""
    width = 14 + _LARGE * len(text)
    parts += [
        rect(x, y, width, 30, "paper", f' rx="6" stroke="var(--{fill})" stroke-width="2"'),
        mono(x + 7, y + 20, text, "ink", _LARGE).replace('class="mono"', 'class="mono chip"'),
    ]
    return width


# --- the states ------------------------------------------------------------------------------------------------------

_PLACES: Final[Mapping[State, tuple[int, int]]] = {
    State.TEXT: (210, 90), State.REASONING: (210, 200), State.FENCE: (210, 310), State.OBJECT: (210, 420),
    State.MESSAGE: (210, 530), State.CANDIDATE: (490, 250), State.AFTER: (490, 450), State.CALL: (760, 110),
    State.UNKNOWN: (760, 230), State.BROKEN: (760, 350), State.CLOSED: (760, 530),
    State.OVER: (490, 110),
}  # fmt: skip
_BOX: Final = (172, 46)
_SAID: Final = {
    Input.CLOSE: (760, 574, "from any state: the reply ends"),
    Input.UNWRAP: (490, 494, "also from text and reasoning: a wrapper closes"),
}
"""Transitions possible from so many states that a note replaces their arrows."""
_NAMES: Final = {
    Input.FENCE: "a fence", Input.THINK: "reasoning opens", Input.OPEN: "an opener", Input.COMMIT: "commit",
    Input.DISOWN: "not offered", Input.OBJECT: "not a call", Input.SAY: "text message", Input.WRAP: "another format",
    Input.UNWRAP: "wrapper closes", Input.REJECT: "rejected", Input.BREAK: "unreadable", Input.END: "end",
    Input.TURN: "another turn", Input.CLOSE: "the reply ends",
}  # fmt: skip


def states() -> str:
    """Draw the states, their transitions, and the inputs on which each state returns to the state beneath it."""
    arrows: dict[tuple[State, State], list[str]] = {}
    pops: dict[State, list[str]] = {}
    for state, found, move in rows():
        _arrow(state, found, move, arrows, pops)
    parts = [
        _HEAD,
        label(20, 28, "The states of the parser", "title"),
        label(20, 48, "↩ inputs that end this state and return to the one beneath it on the stack", "small faint"),
    ]
    for (state, target), names in arrows.items():
        parts += _edge(state, target, names, both=(target, state) in arrows)
    for state, (x, y) in _PLACES.items():
        width, height = _BOX
        fill = "call" if state in CALLS else "text"
        frame = f' stroke="var(--{fill})" stroke-width="2" rx="9"'
        gives = f"↩ {', '.join(pops[state])}" if state in pops else ""
        parts += [
            rect(x - width / 2, y - height / 2, width, height, "paper", frame),
            label(x, y + (-2 if gives else 5), state.value, "", ' text-anchor="middle" font-weight="600"'),
            label(x, y + 15, gives, "small faint", ' text-anchor="middle"') if gives else "",
        ]
    parts += [label(x, y, text, "small faint", ' text-anchor="middle"') for x, y, text in _SAID.values()]
    return picture(
        950, 600, "The states of the parser",
        "Text, reasoning, a fence, an object and a message on the left; on the right a call: an opener starts a "
        "candidate, which commits, is disowned, rejected or broken; its closers follow.",
        filter(None, parts),
    )  # fmt: skip


def _arrow(
    state: State, found: Input, move: Move, arrows: dict[tuple[State, State], list[str]], pops: dict[State, list[str]]
) -> None:
    if found in _SAID:
        return
    if move.push is None:
        pops.setdefault(state, []).append(_NAMES[found])
    else:
        arrows.setdefault((state, move.push), []).append(_NAMES[found])


def _edge(state: State, target: State, names: list[str], *, both: bool) -> Iterator[str]:
    """Draw a labeled arrow. `both` means that there is also an arrow in the opposite direction, so each keeps to its
    own side.
    """
    (x, y), (to_x, to_y) = _PLACES[state], _PLACES[target]
    width, height = _BOX
    # If another state is in between, the arrow bends around it.
    if any(place[0] == x == to_x and min(y, to_y) < place[1] < max(y, to_y) for place in _PLACES.values()):
        side = -1 if x < width * 2 else 1
        far = x + side * (width / 2 + (34 if side > 0 else 0.32 * abs(to_y - y)))
        begin, end = (x + side * width / 2, y + 8), (to_x + side * (width / 2 + 3), to_y)
        path = f"M{number(begin[0])} {number(begin[1])}C{number(far)} {number(y + 8)} {number(far)} {number(to_y)}"
        yield f'<path d="{path} {number(end[0])} {number(end[1])}" fill="none" {_ARROW}/>'
        yield _named(begin[0] * 0.25 + far * 0.75, (y + to_y) / 2, names)
        return
    dx, dy = to_x - x, to_y - y
    length = (dx * dx + dy * dy) ** 0.5
    bend = (36 if x == to_x else 12) if both else 0
    x, y, to_x, to_y = (place + off for place, off in zip(
        (x, y, to_x, to_y), (-dy / length * bend, dx / length * bend) * 2, strict=True
    ))  # fmt: skip
    part = min((width / 2 + 4) / abs(dx) if dx else 9, (height / 2 + 4) / abs(dy) if dy else 9)
    x1, y1, x2, y2 = x + dx * part, y + dy * part, to_x - dx * part, to_y - dy * part
    yield f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" {_ARROW}/>'
    yield _named(x1 * 0.5 + x2 * 0.5, y1 * 0.5 + y2 * 0.5, names)


_ARROW: Final = 'stroke="var(--faint)" marker-end="url(#m)"'


def _named(x: float, y: float, names: Sequence[str]) -> str:
    ground = ' text-anchor="middle" style="paint-order:stroke;stroke:var(--paper);stroke-width:5px"'
    return label(x, y + 4, ", ".join(names), "small faint", ground)


_HEAD: Final = (
    '<defs><marker id="m" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="var(--faint)"/></marker></defs>'
)
PICTURES: Final[Mapping[str, Callable[[], str]]] = {
    "deltas": deltas, "timeline": timeline, "demo": demo, "resumed": resumed, "states": states,
}  # fmt: skip


def main() -> None:
    """Write the pictures."""
    for name, make in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(make(), encoding="utf-8")
        print(FOLDER / f"{name}.svg")


if __name__ == "__main__":
    main()
