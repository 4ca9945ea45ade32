"""Generate `docs/reference/formats.md`: common properties of the formats, and a section for each row of the table."""

import re
from collections.abc import Iterator
from textwrap import fill

from statemachine import FORMATS, OPT_IN, Format, write
from statemachine.bodies.repeated import MAX_BUFFERED
from statemachine.formats import REASONING
from statemachine.formats.format import Anchor
from statemachine.formats.scanner import MAX_NEWLINES
from statemachine.grammar.left_over import MAX_LEFT_OVER
from statemachine.machine.machine import MAX_BARE_BUFFER, Limits
from statemachine.machine.waiting import openers
from streamtool.cli.formats import (
    EXAMPLE,
    PLACES,
    SECOND,
    arguments,
    closer,
    code,
    describe_span,
    join_markers,
    losses,
    opener,
    wrappers,
)
from streamtool.cli.holds import buffer_bounds, formula
from streamtool.models.families import special_tokens

WIDTH = 118
FIXED = ("|", "#", "<!--", "```")
"""Beginnings of lines that are not part of a paragraph."""


def page() -> str:
    """Return the content of `docs/reference/formats.md`."""
    known = {
        "COUNT": str(len(FORMATS)),
        "OPTIN": ", ".join(code(name) for name in FORMATS if name in OPT_IN),
        "SPANS": " and ".join(join_markers((span.open for span in REASONING if not span.text), ", ").rsplit(", ", 1)),
        "MAX_NEWLINES": str(MAX_NEWLINES),
        "BARE": f"{MAX_BARE_BUFFER:,}",
        "HELD": f"{Limits().held:,}",
        "LEFT_OVER": str(MAX_LEFT_OVER),
        "REPEATED": f"{MAX_BUFFERED:,}",
        "LONGEST": str(max(len(marker) for form in FORMATS.values() for marker in openers(form))),
        "TABLE": "\n".join(map(row, FORMATS.values())),
    }
    text = _BEFORE
    for word, value in known.items():
        text = text.replace(f"${word}$", value)
    return "\n".join([filled(text), *(section(form) for form in FORMATS.values())])


def row(form: Format) -> str:
    """Return a format's row in the overview."""
    begins = opener(form).replace("|", "\\|")
    return f"| [`{form.name}`](#{form.name}) | {begins} | {form.models} |".replace("|  |", "| |")


def section(form: Format) -> str:
    """Return the section about a format."""
    listed = "\n".join(item(f"{label}: {text}") for label, text in facts(form) if text)
    about = [paragraph(form.about)] if form.about else []
    return "\n".join([f"## `{form.name}`\n", listed + "\n", *about, example(form)])


def facts(form: Format) -> Iterator[tuple[str, str]]:
    """Yield those properties of a format that neither the overview nor the example shows, each as a label and Markdown
    text.
    """
    closers, shown = closer(form), example(form)
    yield "closes with", "" if all(marker in shown for marker in re.findall("`([^`]+)`", closers)) else closers
    yield "wrapped in", wrappers(form)
    yield "recognized", "" if form.anchor is Anchor.ANYWHERE else PLACES[form.anchor]
    yield "arguments", arguments(form)
    yield "spans", "; ".join(map(describe_span, form.sections))
    yield "special tokens", join_markers(special_tokens(form), ", ")
    yield "buffered", buffered(form)
    yield "limits", losses(form)


def buffered(form: Format) -> str:
    """Return a format's four bounds, in the order of the page's section on buffering."""
    marker = buffer_bounds(form, "name", "key").marker
    opening = formula(lambda name, key: buffer_bounds(form, name, key).opening)
    inside = formula(lambda name, key: buffer_bounds(form, name, key).inside)
    closing = formula(lambda name, key: buffer_bounds(form, name, key).closing)
    return f"{marker}, {opening}, {inside}, {closing}"


def example(form: Format) -> str:
    """Return a call as the format writes it, or two if the second one is not written after the first as it is alone."""
    first, both = write([EXAMPLE], form.name), write([EXAMPLE, SECOND], form.name)
    plain = f"{first.strip()}{write([SECOND], form.name).strip()}"
    return f"````text\n{first if ''.join(both.split()) == ''.join(plain.split()) else both}\n````\n"


def paragraph(text: str) -> str:
    """Wrap a paragraph."""
    return fill(text, WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def item(text: str) -> str:
    """Wrap a list item."""
    return fill(f"- {text}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False, tabsize=1)


def filled(text: str) -> str:
    """Wrap the paragraphs and list items of a page; leave tables, headings and code blocks unchanged."""
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

A format is one way of writing a call as text. There are $COUNT$ formats, and the parser recognizes all of them at once,
except for the opt-in formats ($OPTIN$). Their markers occur in ordinary answers, so they are recognized only if you
select or teach them, or if the model's family uses them.

The tool prompt *teaches* the model one format: the [`format` setting](../settings.md#general), or that of its chat
template or [family](../settings.md#families).

| format | opens with | written by |
|---|---|---|
$TABLE$

## How calls are read

- Arguments that are almost JSON are repaired as they stream: other kinds of quotes, trailing commas, bare keys, Python
  literals, comments, raw newlines, arguments inside a JSON string, missing closing brackets. A value of the wrong type
  is converted if it can only mean one thing (`"3"` for an integer). `CallEnd.repairs` names every repair.
- Calls in a reasoning span are not recognized unless `calls_in_reasoning` is on, the default for families known to
  leave their reasoning open. $SPANS$ open reasoning, as do the reasoning spans listed below.
- `CallStart.format` names the format of a call, and `Record.formats` the formats found in an exchange.

[The parser's rules](../parser.md#rules) apply to all formats. Where engines differ, this parser decides as follows:

- Reasoning that is never closed extends to the end of the reply, unless `calls_in_reasoning` is on.
- Text after a call is text, even an invented result.
- Consecutive bare objects are separate calls. An object for an unknown tool is text.
- A bare object that is cut off is an incomplete call once its name is known.
- `<tool_call>f a=1 b=2</tool_call>`, with attributes but no tag, is text.
- A raw value whose schema is a string is taken verbatim, including quotes and nested tags. If the schema also allows an
  object, nested tags form an object.
- Apart from types, arguments are not checked against the schema.

## How much is buffered

The parser buffers only the text listed here; everything else is emitted in the `feed` that delivers it. *Buffered* in a
format's section gives four bounds in characters, in the order of this list, for calls as the format writes them; *name*
and *key* are the lengths of the name and of a key. `tests/statemachine/test_held.py` checks these numbers, and
`Parser.held` is the current amount.

- *marker*: the possible beginning of a marker. The longest opener has $LONGEST$ characters; whitespace inside it adds
  to that.
- *opening*: a call from its first marker until its name is known and its arguments have begun. Without a marker, the
  limit is $BARE$; with one, it is `limits.held` ($HELD$).
- *inside*: an incomplete escape of a JSON string; in a raw value, a possible closer and the text after it. A raw value
  that need not be a string is also buffered while it may be JSON of another type, and a quoted value that must not be a
  string while it may be a number or a word.
- *end*: whitespace and possible closers.

In addition:

- Newlines, which are markup if an opener follows: $MAX_NEWLINES$. A `\\r` waits for the next character.
- Words (`true`), incomplete numbers and commas, until the next character arrives. In Python calls, the first element in
  braces, until a colon or comma shows whether it belongs to a dictionary or a set: 256.
- In `minimax_m3`, an element that the schema does not describe, until it is clear whether others of its name follow and
  form an array: $REPEATED$ characters of its JSON.
- Closers without an opener at the beginning of a line, while nothing else follows: $LEFT_OVER$.

## Special tokens

Markers such as `<|tool_call|>` are single tokens in the model's vocabulary. If a server strips them, the rest is text.
Such formats are recognized, but taught only if a setting selects them. An ordinary-looking tag may be a special token
too (Jamba's `<tool_calls>`, some models' `<tool_call>`).

| server | special tokens in the output | to keep them |
|---|---|---|
| vLLM, SGLang | stripped | nothing: a [recognized](../proxy.md#servers) server is asked to keep them |
| llama.cpp | control tokens stripped | start `llama-server` with `--special` |
| Ollama | kept | nothing; a template with its own parser acts only on requests with tools |
| LM Studio | depends on the runtime | impossible; teach a format that consists of ordinary text |
| Text Generation Inference | stripped from chat replies | impossible; teach a format that consists of ordinary text |
| Transformers, called directly | depends on how you decode | `skip_special_tokens=False` |

Unknown request fields are forwarded, so a client can set these.

## Examples

Each section below shows a call as `write` produces it, or two calls if the second one is not written like the first. A
closer is listed only if the example does not show it.
Only the schema determines the types of marked parameters, unless the section mentions types. Without a *recognized*
line, a call is recognized anywhere in the text. `tests/formats/` contains more model text with the expected events.
`streamtool formats --json` prints the table and the cases for other programs, and the tools in `conformance/` run the
cases through any parser.
"""
