"""`streamtool formats`: the formats of the table, one with an example, or all as the page `docs/formats.md`.

Everything but the remarks is read off the table: the example is what `write` makes, the opener what the table says.
"""

from collections.abc import Mapping
from textwrap import fill
from types import MappingProxyType

from statemachine import FORMATS, OPT_IN, Call, Format, write
from statemachine.format import Anchor, Envelope, Json, Parameters
from statemachine.formats import REASONING
from streamtool.cli.common import Screen
from streamtool.settings.readers import format_name

EXAMPLE = Call("get_weather", '{"city": "Paris", "days": 3}')
SECOND = Call("get_time", '{"zone": "Europe/Paris"}')

PLACES: Mapping[Anchor, str] = MappingProxyType(
    {
        Anchor.ANYWHERE: "anywhere in the text",
        Anchor.LINE: "at the start of a line, blanks before it allowed",
        Anchor.REPLY: "where nothing but white space, reasoning or calls came before",
    }
)

REMARKS: Mapping[str, str] = MappingProxyType(
    {
        "tool_call": (
            "Taught by default. Several blocks may follow one another, a block may hold an array of calls, the last "
            "block may lack its closer, and a call without arguments has `{}`."
        ),
        "labelled": "Letter case and the blanks around the colons do not matter. Several pairs may follow one another.",
        "invoke": (
            "Around the calls `<function_calls>` or `<minimax:tool_call>` may stand, around the parameters "
            "`<parameter_list>`; every tag may carry a namespace prefix; quotes may be double, single or missing. "
            'The attribute style, `<invoke name="f" city="Paris"/>`, is read too. A value is taken as it stands, its '
            "own line ends included, and typed by the tool's schema."
        ),
        "fenced": (
            "The info string may be one of the listed ones, `json`, or missing. A fence that turns out to hold no call "
            "is an answer: it comes out as text, the fence included."
        ),
        "object": (
            "Has no marker of its own, so a call is believed only once name and arguments key have been read. An "
            "object that is no call is text to its closing brace, and nothing is looked for inside of it."
        ),
        "openai_fragment": "The enclosing braces may be there or not. The arguments are a JSON string.",
        "command": "`@tool f {…}` is read too. Mentions and mail addresses are text, unless they name an offered tool.",
        "action_object": (
            "A strict protocol in which the whole reply is one object: a call, or "
            '`{"final": {"content": …}}`, whose content is the visible text and streams as it is decoded. The thought '
            "is reasoning. Off unless it is taught or chosen by name, because honest JSON answers look like it."
        ),
        "react": "`Thought:` lines before it are text. An invented `Observation:` after it is not a result.",
        "mistral": (
            "Newer models write `[TOOL_CALLS]f[ARGS]{…}`, perhaps with `[CALL_ID]…` in between, once per call. The "
            "marker is a special token: an upstream that strips special tokens must be told to keep them."
        ),
        "qwen3_coder": (
            "The outer tag may be missing. Exactly one line end on each side of a value is markup, the rest of the "
            "value is taken as it stands and typed by the tool's schema."
        ),
    }
)
"""What the table does not say, by format; a test holds both together."""


def run(name: str | None, *, markdown: bool) -> None:
    """Print what is asked for. Raises SettingsError for an unknown format."""
    screen = Screen()
    if markdown:
        screen.line(page(), end="")
    elif name is None:
        for form in FORMATS.values():
            opt_in = " (only when chosen)" if form.name in OPT_IN else ""
            screen.line((f"{form.name:<16}", "bold cyan"), f" {opener(form)}", (opt_in, "yellow"))
    else:
        form = FORMATS[format_name(name, "NAME")]
        screen.line((form.name, "bold cyan"))
        for label, text in facts(form):
            screen.line((f"  {label:<10} ", "dim"), text)
        screen.line()
        screen.line((write([EXAMPLE], form.name), "green"))


def facts(form: Format) -> list[tuple[str, str]]:
    """What the table says of a format, for people."""
    found = [("opens with", opener(form)), ("counts", PLACES[form.anchor]), ("arguments", arguments(form))]
    if form.models:
        found.append(("written by", form.models))
    if form.name in OPT_IN:
        found.append(("enabled", "only when it is taught or chosen by name"))
    return found


def opener(form: Format) -> str:
    """How a call in this format begins."""
    if form.openers:
        return " or ".join(plain(text) for text in form.openers)
    if form.fence:
        return "a code fence: " + ", ".join(form.fence)
    return "a bare JSON object"


def plain(marker: str) -> str:
    """A marker without its pieces of pattern."""
    for piece, text in (("{ns}", ""), ("{_}", ""), ("{ }", " "), ("{*}", "")):
        marker = marker.replace(piece, text)
    return marker.strip()


def arguments(form: Format) -> str:
    """How a format writes the arguments."""
    kinds = []
    for shape in form.shapes:
        match shape.body:
            case Json():
                kinds.append("a JSON object")
            case Envelope():
                kinds.append("JSON that carries name and arguments")
            case Parameters():
                kinds.append("marked parameters, typed by the schema")
    return "; or ".join(dict.fromkeys(kinds))


def page() -> str:
    """`docs/formats.md`."""
    parts = [_BEFORE.replace("SPANS", ", ".join(f"`{span.open}`" for span in REASONING))]
    for form in FORMATS.values():
        parts.append(f"## `{form.name}`\n")
        parts.append("\n".join(f"- {label}: {cell(label, text)}" for label, text in facts(form)) + "\n")
        parts.append(fill(REMARKS[form.name], 118, break_long_words=False, break_on_hyphens=False) + "\n")
        parts.append(f"````text\n{write([EXAMPLE, SECOND], form.name)}\n````\n")
    return "\n".join(parts)


def cell(label: str, text: str) -> str:
    """A fact as Markdown: markers as code."""
    return f"`{text}`" if label == "opens with" and not text.startswith("a ") else text


_BEFORE = """\
<!-- made by `streamtool formats --markdown`; a test keeps it current -->

# Formats

A format is one textual way of writing a call. The parser listens for all of them at once, except those that say
"only when"; nobody has to know which one a model prefers. One of them is *taught*: the contract shows the model
how to write a call in it. By default that is `tool_call`, or the format of the model's family where its markers are
ordinary text; the setting `format` chooses another.

For every format the same holds:

- The call starts, and each piece of its arguments goes out, with the delta that brought it.
- Text before, between and after calls is kept. Line ends directly before a call and between calls are markup; those
  after a call are given back when text follows and text came before.
- Arguments that are not quite JSON are mended as they stream (quotes of other kinds, trailing commas, bare keys,
  Python's literals, comments, raw line ends, arguments given as a JSON string, missing closing brackets); every repair
  is named on the call.
- A call of a tool that nobody offered is read to its end, and nothing inside of it is executed.
- An opener in inline code or in a fence that is no call is text.
- What stands in a reasoning span at the beginning of a reply is reasoning, and calls in it do not count unless
  `calls_in_reasoning` is set. The spans are opened by
  SPANS.
- A call that the end of the text cut off is marked incomplete, never completed.

The examples below are what `write` makes of two calls; the parser reads them back. More than the examples shows
`tests/formats/`: one file per format, with model text and the events that it must give.
"""
