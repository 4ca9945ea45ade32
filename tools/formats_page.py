"""The page `docs/formats.md`: what holds for all formats, and each of the table. A test keeps it current."""

from textwrap import fill

from statemachine import FORMATS, OPT_IN, Format, write
from statemachine.bodies.repeated import LONGEST
from statemachine.formats import REASONING
from statemachine.formats.scanner import MAX_NEWLINES
from statemachine.grammar.left_over import MAX_LEFT_OVER
from statemachine.machine import BARE_HOLD, Limits
from statemachine.waiting import openers
from streamtool.cli.formats import EXAMPLE, SECOND, code, either, facts, opener
from streamtool.families import special_tokens

WIDTH = 118
FIXED = ("|", "#", "<!--", "```")
"""What begins a line that is no paragraph."""


def page() -> str:
    """`docs/formats.md`."""
    spans = [*REASONING, *(span for form in FORMATS.values() for span in form.sections if not span.text)]
    known = {
        "COUNT": str(len(FORMATS)),
        "OPTIN": ", ".join(code(name) for name in FORMATS if name in OPT_IN),
        "SPANS": either((span.open for span in spans), ", "),
        "MAX_NEWLINES": str(MAX_NEWLINES),
        "BARE": f"{BARE_HOLD:,}",
        "HELD": f"{Limits().held:,}",
        "LEFT_OVER": str(MAX_LEFT_OVER),
        "REPEATED": f"{LONGEST:,}",
        "LONGEST": str(max(len(marker) for form in FORMATS.values() for marker in openers(form))),
        "TABLE": "\n".join(map(row, FORMATS.values())),
    }
    text = _BEFORE
    for word, value in known.items():
        text = text.replace(f"${word}$", value)
    return "\n".join([filled(text), *(section(form) for form in FORMATS.values())])


def row(form: Format) -> str:
    """A format in the overview."""
    special = "special tokens" if special_tokens(form) else ""
    begins = opener(form).replace("|", "\\|")
    return f"| [`{form.name}`](#{form.name}) | {begins} | {form.models} | {special} |"


def section(form: Format) -> str:
    """The section of a format."""
    listed = "\n".join(item(f"{label}: {text}") for label, text in facts(form))
    about = [paragraph(form.about)] if form.about else []
    return "\n".join([f"## `{form.name}`\n", listed + "\n", *about, example(form)])


def example(form: Format) -> str:
    """Two calls, as the format writes them."""
    return f"````text\n{write([EXAMPLE, SECOND], form.name)}\n````\n"


def paragraph(text: str) -> str:
    """Text in lines."""
    return fill(text, WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def item(text: str) -> str:
    """An item of a list in lines."""
    return fill(f"- {text}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False, tabsize=1)


def filled(text: str) -> str:
    """The text with its paragraphs and items in lines of the page's width; tables, headings and blocks stay."""
    parts: list[str] = []
    for line in text.split("\n"):
        if line and parts and parts[-1] and not line.startswith(("- ", *FIXED)) and not parts[-1].startswith(FIXED):
            parts[-1] += f" {line.strip()}"
        else:
            parts.append(line)
    return "\n".join(
        part
        if not part or part.startswith(FIXED)
        else item(part[2:])
        if part.startswith("- ")
        else paragraph(part)[:-1]
        for part in parts
    )


_BEFORE = """\
<!-- made by `tools/formats_page.py`; a test keeps it current -->

# Formats

A format is one textual way of writing a call; there are $COUNT$. The parser listens for all of them at once, except
$OPTIN$, whose markers occur in honest answers; nobody has to know which one a model prefers. One of them is
*taught*: the tool prompt shows the model how to write a call in it. That is the format of the model's family, as its
name tells, if all that it has to write is ordinary text, else `tool_call`; the setting `format` chooses another.

| format | opens with | written by | |
|---|---|---|---|
$TABLE$

## For every format

- The call starts, and each piece of its arguments goes out, with the delta that brought it.
- Text before, between and after calls is kept. Line ends directly before a call and between calls are markup; those
  after a call are given back when text follows and text came before.
- Arguments that are not quite JSON are mended as they stream (quotes of other kinds, trailing commas, bare keys,
  Python's literals, comments, raw line ends, arguments given as a JSON string, missing closing brackets); so is a
  value whose type the schema does not allow, where it can be (`"3"` for an integer). Every repair is named on the
  call.
- A call of a tool that nobody offered is text (or discarded) to its end, and nothing inside of it is executed. An
  object that is no call is text to its closing brace.
- An opener in inline code or in a fence that is no call is text. A call that stands first in a fence is a call.
- What stands in a reasoning span is reasoning, and calls in it do not count unless `calls_in_reasoning` says so,
  which by default it does for families that are known to leave their reasoning open. The spans are opened by
  $SPANS$.
- A call that the end of the text cut off is marked incomplete, never completed.
- Which format was recognised is said on the call (`CallStart.format`), and per exchange in the record
  (`Record.formats`).

## What is held, and for how long

Everything else leaves in the `feed` that brought it. These are characters, and upper bounds:

- The beginning of a marker, until it is one or is none: at most the longest opener less one, $LONGEST$ with all
  formats on; white space inside of a marker adds to it.
- Line ends, which are markup if an opener follows: at most $MAX_NEWLINES$. A `\\r` waits for the next character.
- A call from its first marker until it *starts*: until its name is known and what begins the arguments has come.
  For a call as the format writes it the number stands at each format; *name* and *key* are their lengths. Without a
  marker of its own it is at most $BARE$, then it is text; with one, white space and all, at most `limits.held`
  ($HELD$).
- Inside of a JSON string half an escape, inside of a raw value what may be its end: the closer and what may follow
  it. Words (`true`), numbers that lack a digit, and commas wait for what follows them. In call expressions of Python
  what stands first in braces waits for the colon or comma behind it, since a set is an array: at most 256 characters.
- A raw value whose schema allows something else than a string: while it may still be JSON of such a type. At the
  first other character it is a string, and flows. A quoted value where the schema allows no string: while it may
  still be a number or a word.
- Of elements in an object of which the schema says nothing (`minimax_m3`) the first value of a name, until the next
  element or the end of the object says whether an array begins with it: at most $REPEATED$ of its JSON.
- After a call, white space and the beginning of its closers.
- Closers of calls that nobody saw open, where they begin a line, while nothing else has come: at most $LEFT_OVER$.

`Parser.held` says how much it is at any moment; `tests/test_held.py` holds the parser to the numbers below, character
by character.

## What was decided, and what is missed

Engines differ in these; the parser does this:

- Reasoning that is never closed is reasoning to the end, calls in it included, unless `calls_in_reasoning` is on: a
  stream cannot know that no closer will come.
- Text after a call is text. A model that goes on to invent a result is not stopped by the parser.
- What the prompt already holds of the reply (`prefix`) is read, and its text is not emitted; a call that begins in
  it is.
- Two bare objects are two calls, one after the other; an object of an unknown tool is text and does not end the
  reading of what follows.
- A bare object that the end of the text cut off is an incomplete call once its name is known, rather than nothing.
- An opener whose call turns out to be none is text, markup included: nothing is swallowed.
- A closer of reasoning that stands first in a reply closes what the prompt has opened: it is markup. Behind text that
  has gone out already, it is text.
- Reasoning, and text between special tokens, opens only where nothing came before, or directly after another such
  span; elsewhere the markers are text, since answers may speak of them.
- `<tool_call>f a=1 b=2</tool_call>`, attributes without a tag, is not read: it is text.
- A raw value that is a string by its schema is taken as it stands, quotes and nested tags included; where the schema
  also allows an object, nested tags are one.
- Formats that are off by default are not read unless they are taught, chosen, or those of the model's family.
- Arguments are one JSON object; whether they fit the schema, beyond the types that are mended, is not checked.

## Special tokens

Markers such as `<|tool_call|>` are single tokens of the model's vocabulary. A server that strips special tokens
from its output strips them too, and what is left can no longer be told from text. So they are listened for, but
taught only if a setting says so; such formats say "special tokens" below. A tag that looks ordinary may be a
special token as well (`<tool_calls>` is one of Jamba's, and some models have `<tool_call>`): when calls arrive
without their tags, the server strips them.

| server | special tokens in the output | to keep them |
|---|---|---|
| vLLM | stripped | `"skip_special_tokens": false` in the request |
| SGLang | stripped, unless the request has tools | `"skip_special_tokens": false` in the request |
| llama.cpp | control tokens are stripped | start `llama-server` with `--special` |
| Ollama | kept | nothing to do; a template with a parser of its own acts on requests that have tools only |
| LM Studio | depends on the runtime | there is no setting; teach a format of ordinary text |
| Text Generation Inference | stripped from chat replies | there is no setting; teach a format of ordinary text |
| Transformers, by hand | as you decode | `skip_special_tokens=False` |

Fields of the request that streamtool does not know travel on, so a client (or a proxy in between) can set them.

The examples below are what `write` makes of two calls; the parser reads them back. More than the examples shows
`tests/formats/`: one file per format, with model text and the events that it must give. `streamtool formats --json`
prints table and cases for other programs, and `conformance/` runs the cases through any parser.
"""
