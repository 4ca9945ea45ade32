"""`streamtool formats`: list the formats, or show one with an example.

Everything is derived from the table of formats: `write` produces the example, the rows define the markers, and `holds`
computes how much is buffered.
"""

import shutil
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from statemachine import FORMATS, OPT_IN, Call, Format, write
from statemachine.formats import find_format, is_format, plugged_formats
from statemachine.formats.format import (
    Anchor,
    Body,
    Envelope,
    Expression,
    JsonBody,
    MessageBody,
    Parameters,
    Section,
    openers_of,
)
from statemachine.formats.markers import spell
from streamtool.cli.columns import WIDTH, fit, pad
from streamtool.cli.common import Screen
from streamtool.cli.holds import buffer_bounds, formula
from streamtool.models.families import UNKNOWN, family_of, special_tokens
from streamtool.models.format_aliases import FORMAT_ALIASES, find_format_name, looks_like_model
from streamtool.settings.model import reason_by_name
from streamtool.settings.readers import format_name

EXAMPLE = Call("get_weather", '{"city": "Paris", "days": 3}')
_NAME = max(map(len, FORMATS))
_OPENS = 26  # columns for the opener
SECOND = Call("get_time", '{"zone": "Europe/Paris"}')

PLACES: Mapping[Anchor, str] = MappingProxyType(
    {
        Anchor.ANYWHERE: "anywhere in the text",
        Anchor.LINE: "at the start of a line, possibly indented",
        Anchor.REPLY: "at the start of the reply, after nothing but whitespace, reasoning or calls",
    }
)


def run(name: str | None) -> None:
    """Print all formats, or the one with this name or of this model. Raises SettingsError for an unknown name."""
    screen = Screen()
    if name is None:
        width = shutil.get_terminal_size((WIDTH, 0)).columns
        for form in sorted(
            (*FORMATS.values(), *plugged_formats()),
            key=lambda form: (not form.models, form.models.casefold(), form.name),
        ):
            opens = fit(strip_markdown(opener(form)), _OPENS)
            models = ("opt-in; " if form.name in OPT_IN else "") + form.models
            shown = fit(models.removesuffix("; "), max(8, width - _NAME - _OPENS - 4))
            last = (("  ", ""), (shown, "dim")) if shown else ()
            screen.line((f"{form.name:<{_NAME}}", "bold cyan"), "  ", pad(opens, _OPENS) if shown else opens, *last)
    else:
        known = find_format_name(name) or is_format(name)
        form = find_format(format_name(name, "NAME") if known else _of_model(name, screen))
        screen.line((form.name, "bold cyan"))
        aliases = [alias for alias, known in FORMAT_ALIASES.items() if known == form.name]
        for label, text in [*([("also named", ", ".join(aliases))] if aliases else []), *facts(form)]:
            screen.line((f"  {label:<14} ", "dim"), strip_markdown(text))
        screen.line()
        screen.line((write([EXAMPLE], form.name), "green"))


def _of_model(name: str, screen: Screen) -> str:
    """Print what `auto` chooses for a model with this name, and why. Return the format that it teaches.

    Raises SettingsError if this is neither the name of a model nor that of a format.
    """
    if not looks_like_model(name):
        return str(format_name(name, "NAME"))
    family = family_of(name)
    reason = reason_by_name(family) if family is not UNKNOWN else "default, because the family is unknown"
    screen.line((name, "bold"), f" is taught {family.format} ({reason}).")
    listens = [*family.listen, *family.calls_in_reasoning]
    further = f", and {join_markers(listens, ', ')}" if listens else ""
    screen.line(strip_markdown(f"It is recognized in all formats that are enabled by default{further}."))
    screen.line("The model's chat template, if the server reports it, takes precedence over its name.")
    screen.line()
    return family.format


def strip_markdown(text: str) -> str:
    """Strip Markdown code marks for display on a terminal."""
    return text.replace("`` ", "").replace(" ``", "").replace("`", "")


def code(marker: str) -> str:
    """Return a marker as Markdown code, with newlines escaped."""
    text = marker.replace("\n", "\\n")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def join_markers(markers: Iterable[str], between: str = " or ") -> str:
    """Join alternative markers as code."""
    return between.join(dict.fromkeys(code(spell(marker).strip(" ")) for marker in markers if marker))


def facts(form: Format) -> list[tuple[str, str]]:
    """Return the properties of a format, each as a label and Markdown text."""
    found = [("opens with", opener(form)), ("closes with", closer(form)), ("wrapped in", wrappers(form))]
    found += [("recognized", PLACES[form.anchor]), ("arguments", arguments(form))]
    found += [("spans", "; ".join(map(describe_span, form.sections))), ("written by", form.models)]
    if form.name in OPT_IN:
        found.append(("enabled", "only when taught, selected by name, or used by the model's family"))
    tokens = special_tokens(form)
    if tokens:
        found.append(("special tokens", f"{join_markers(tokens, ', ')}: the server must preserve them"))
    found += [("buffered", describe_buffering(form)), ("limits", losses(form))]
    return [(label, text) for label, text in found if text]


def opener(form: Format) -> str:
    """Describe how a call in this format begins."""
    openers = [opener for variant in form.variants for opener in openers_of(form, variant)]
    if openers:
        listed = any(isinstance(variant.body, Expression) and variant.body.bare for variant in form.variants)
        return join_markers(openers) + (", or a bare list at the beginning of a reply" if listed else "")
    if form.fence:
        return "a code fence: " + join_markers(form.fence, ", ")
    body = form.variants[0].body
    return "a bare JSON array" if isinstance(body, Envelope) and body.array else "a bare JSON object"


def closer(form: Format) -> str:
    """Return the markers that close a call, or "" if the format has none."""
    ends = [end for variant in form.variants if isinstance(variant.body, MessageBody) for end in variant.body.ends]
    return join_markers([form.close, *ends])


def wrappers(form: Format) -> str:
    """Return the wrappers that may enclose calls."""
    written = {form.around: "around all calls", form.around_each: "around each call"}
    return "; ".join(
        f"{code(spell(before))} … {code(spell(after))}, {written.get(before, 'optional')}"
        for before, after in form.wrappers
    )


def arguments(form: Format) -> str:
    """Describe how the format writes arguments."""
    return "; or ".join(dict.fromkeys(describe_body(variant.body) for variant in form.variants))


def describe_body(body: Body) -> str:
    """Describe how a body of this kind represents the arguments."""
    match body:
        case JsonBody():
            return "a JSON object"
        case Envelope(keyed=True):
            return "JSON whose key is the name and whose value is the arguments"
        case Envelope(array=True):
            return "a JSON array of calls, each with name and arguments"
        case Envelope():
            return "JSON with name and arguments"
        case Parameters():
            return "marked parameters with types" if body.type_attribute or body.type_marks else "marked parameters"
        case Expression(flag=flag) if flag:
            return f"keys after {code(flag)}, each followed by its value"
        case Expression(brackets="()"):
            return "a call expression with Python or JSON literals"
        case Expression():
            return "a call expression with bare keys"
        case MessageBody():
            return "the JSON object of a message whose header names the tool"


def describe_span(found: Section) -> str:
    """Describe a span by the kind of its content and its markers."""
    kind = "text" if found.text else "reasoning"
    return f"{kind} in {code(spell(found.open))} … {code(spell(found.close))}"


def describe_buffering(form: Format) -> str:
    """Describe how many characters are buffered in each part of a call."""
    begun = buffer_bounds(form, "name", "key").marker
    opening = formula(lambda name, key: buffer_bounds(form, name, key).opening)
    inside = formula(lambda name, key: buffer_bounds(form, name, key).inside)
    closing = formula(lambda name, key: buffer_bounds(form, name, key).closing)
    values = ", and values other than strings to their end" if buffer_bounds(form, "name", "key").values else ""
    first = f"{begun} while a marker may begin; " if begun else ""
    return f"{first}{opening} until the call starts; {inside} inside it{values}; {closing} after it"


def losses(form: Format) -> str:
    """Describe the values that the format cannot represent faithfully."""
    body = form.variants[0].body
    match body:
        case Parameters():
            trimmed = "; one newline on each side of a value is markup" if body.trim else ""
            return f"a raw value may end at {join_markers([body.close])}{trimmed}"
        case Expression(quote=quote) if quote:
            return f"a string cannot contain {join_markers([quote])}"
        case _:
            return ""
