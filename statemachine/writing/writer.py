"""Writer: calls as text. `parse(write(calls, format), tools)` reproduces the calls.

Each kind of body writes its own arguments (`writing/`); the text around them is taken from the format table here.
Several calls are written one after another, in one array if the format uses arrays, or in one block if the format's
opener encloses all calls of a reply.
"""

import re
from collections.abc import Iterable

from statemachine.bodies.scalars import escape_entities
from statemachine.formats.described import find_format
from statemachine.formats.format import (
    Anchor,
    Envelope,
    Expression,
    Format,
    JsonBody,
    MessageBody,
    NameRule,
    Parameters,
    Variant,
)
from statemachine.formats.markers import spell
from statemachine.formats.scanner import TICK
from statemachine.writing.arguments import Written, arguments_of
from statemachine.writing.bodies import envelope, expression, parameters, write_arguments

__all__ = ["Written", "write"]

is_id = re.compile(r"[\w.:-]+").fullmatch


def write(calls: Iterable[Written], format: str | Format) -> str:
    """Return the calls as a model would write them in this format (a name or a `Format`), or "" if the iterable is
    empty.

    Raises:
        KeyError: the format is unknown.
        ValueError: the arguments of a call are not one JSON object.
    """
    form = find_format(format) if isinstance(format, str) else format
    listed = list(calls)
    if not listed:
        return ""
    line = "\n" if form.lines or form.anchor is Anchor.LINE else ""
    blocks = write_blocks(form, form.variants[0], listed)
    if form.around_each:
        blocks = [enclose(form, form.around_each, block) for block in blocks]
    text = line.join(blocks)
    return enclose(form, form.around, text) if form.around and form.around not in form.openers else text


def write_blocks(form: Format, variant: Variant, calls: list[Written]) -> list[str]:
    """Return the text of each call, or of each unit that contains several calls, from opener to closer."""
    match variant.body:
        case Expression() as body if variant.name_rule is not None:
            return [write_flagged_call(form, variant.name_rule, body, call) for call in calls]
        case Envelope() | Expression() as body:
            if isinstance(body, Envelope):
                texts = [envelope(call, body) for call in calls]
            else:
                texts = [expression(call, body) for call in calls]
            if body.array:
                texts = [f"[{', '.join(texts)}]"]
            elif form.around in form.openers:
                texts = ["\n".join(texts)]
            return [frame_text(form, text) for text in texts]
        case MessageBody() as body:
            return [
                spell(spell_name(body.written, call, index) + body.begin) + arguments_of(call) + closer_text(form)
                for index, call in enumerate(calls)
            ]
        case JsonBody():
            return [write_headed_call(form, variant, call, index) for index, call in enumerate(calls)]
        case Parameters() as body:
            return [write_tagged_call(form, variant, body, call, index) for index, call in enumerate(calls)]


def closer_text(form: Format) -> str:
    """Return the closer to write after a call, or "" if the format omits it."""
    return spell(form.close) if form.closed else ""


def enclose(form: Format, opener: str, text: str) -> str:
    """Return text enclosed in a wrapper of the format."""
    line = "\n" if form.lines else ""
    return f"{spell(opener)}{line}{text}{line}{spell(dict(form.wrappers)[opener])}"


def frame_text(form: Format, text: str) -> str:
    """Return text between the format's opener and closer, or in its fence."""
    if form.fence:
        return f"```{form.fence[0]}\n{text}\n```"
    if not form.openers:
        return text
    if form.by_tool:
        return text
    opener, close = spell(form.openers[0]), closer_text(form)
    if form.body_fence:
        return f"{opener}\n```{form.body_fence}\n{text}\n```"
    if not form.lines:
        return f"{opener}{text}{close}"
    return f"{opener}\n{text}\n{close}" if close else f"{opener.removesuffix(' ')} {text}"


def spell_name(spelling: str, call: Written, index: int) -> str:
    """Return a call's name in the format's spelling; `index` counts the calls of the reply."""
    parts = {"{name}": call.name, "{index}": str(index)}
    return re.sub(r"\{(?:name|index)\}", lambda found: parts[found[0]], spelling)


def spell_id(rule: NameRule, call: Written, index: int) -> str:
    """Return a call's id and the marker after it, for a format in which an id precedes the name."""
    given = str(getattr(call, "id", None) or index)
    return f"{given if is_id(given) else index}{rule.id_end}" if rule.id_end else ""


def write_headed_call(form: Format, variant: Variant, call: Written, index: int) -> str:
    """Return a call whose name follows the opener, and whose arguments follow the name as JSON."""
    rule = variant.name_rule or NameRule()
    end, close, arguments = spell(rule.ends[0]), closer_text(form), arguments_of(call)
    end = end if end != "{" else ""  # the brace of the arguments ends the name
    start = spell(form.openers[0]) + spell_id(rule, call, index) + spell_name(rule.spelling, call, index)
    if end.startswith(TICK):  # the markers of a fence must be alone on their lines
        return f"{start}\n{end}\n{arguments}\n{close}"
    if not form.lines:
        return f"{start}{end}{arguments}{close}"
    if end == ">":
        return f"{start}{end}\n{arguments}\n{close}"
    between = f"\n{end}" if end else ""
    return f"{start}{between} {arguments}" + (f"\n{close}" if close else "")


def write_flagged_call(form: Format, rule: NameRule, body: Expression, call: Written) -> str:
    """Return a call whose name follows the opener, and whose arguments follow the name in brackets."""
    opener, end, close = spell(form.openers[0]), spell(rule.ends[0]), closer_text(form)
    return f'{opener} "{call.name}"{end} {write_arguments(call, body)}{close}'


def write_tagged_call(form: Format, variant: Variant, body: Parameters, call: Written, index: int) -> str:
    """Return a call whose arguments are marked parameters."""
    opener, close = spell(form.openers[0]), closer_text(form)
    if variant.name_rule is None:
        start, close = opener.replace("{tool}", call.name), close.replace("{tool}", call.name)
    else:
        name = spell_name(variant.name_rule.spelling, call, index)
        end = variant.name_rule.ends[0]
        if variant.name_rule.attribute:
            name = f' {variant.name_rule.attribute}="{escape_entities(name)}"'
        start = opener + name + ("" if end in (body.key, form.close) else spell(end))
    if form.fence:
        start = f"```{form.fence[0]}\n{start}"
    return ("\n" if form.lines else "").join([start, *parameters(call, form, body), *([close] if close else [])])
