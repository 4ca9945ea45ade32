"""The other direction: calls as text. `parse(write(calls, format), tools)` gives the calls back.

Each body writes its own arguments; what stands around them is read off the table. Several calls stand one after
another, or in one array where the format writes arrays.
"""

import json
from collections.abc import Iterable
from typing import Protocol

from statemachine.format import Envelope, Format, Json, Parameters, Shape
from statemachine.formats import FORMATS
from statemachine.markers import spelled


class Written(Protocol):
    """What can be written: a name and JSON text of its arguments; an `id` is written where the format has a place."""

    @property
    def name(self) -> str:
        """The tool."""

    @property
    def arguments(self) -> str:
        """JSON text of one object; "" is an object without members."""


def write(calls: Iterable[Written], format: str) -> str:
    """The calls in a format, as a model would write them; "" for no calls.

    Raises:
        KeyError: there is no such format.
        ValueError: arguments that are not one JSON object.

    """
    form = FORMATS[format]
    shape = form.shapes[0]
    listed = list(calls)
    if not listed:
        return ""
    match shape.body:
        case Envelope() as body if body.array:
            items = ", ".join(envelope(call, body) for call in listed)
            return framed(form, f"[{items}]")
        case Envelope() as body:
            return "\n".join(framed(form, envelope(call, body)) for call in listed)
        case Json():
            return "\n".join(headed(form, shape, call, arguments_of(call)) for call in listed)
        case Parameters() as parameters:
            return wrapped(form, [tagged(form, shape, parameters, call) for call in listed])


def arguments_of(call: Written) -> str:
    """The arguments on one line, everything else as it stands."""
    text = call.arguments.strip() or "{}"
    try:
        whole = isinstance(json.loads(text), dict)
    except ValueError:
        whole = False
    if not whole:
        raise ValueError(f"the arguments of {call.name!r} are not a JSON object: {text[:60]}")
    # strict JSON has no line end inside of a string, so each one here is white space
    return text.replace("\r", " ").replace("\n", " ")


def envelope(call: Written, body: Envelope) -> str:
    """One envelope object."""
    arguments = arguments_of(call)
    if body.as_string:
        arguments = json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(call.name, ensure_ascii=False)
    inner = f'"{body.name[0]}": {name}, "{body.arguments[0]}": {arguments}'
    if not body.written_nest:
        return f"{{{inner}}}"
    kind = '"type": "function", ' if body.calls else ""
    thought = f'"{body.thought}": "", ' if body.thought else ""
    return f'{{{kind}{thought}"{body.written_nest}": {{{inner}}}}}'


def framed(form: Format, text: str) -> str:
    """Text between the opener and the closer of a format, or in its fence."""
    if form.fence:
        return f"```{form.fence[0]}\n{text}\n```"
    if not form.openers:
        return text
    opener = spelled(form.openers[0])
    return f"{opener}\n{text}\n{spelled(form.close)}" if form.close else f"{opener} {text}"


def headed(form: Format, shape: Shape, call: Written, arguments: str) -> str:
    """A call whose name follows the opener."""
    end = spelled(shape.head.ends[0]) if shape.head else ""
    between = f" {arguments}" if end == "{" else f"\n{end} {arguments}"
    return f"{spelled(form.openers[0])}{call.name}{between}"


def wrapped(form: Format, calls: list[str]) -> str:
    """Calls in the wrapper that the format always has, each in its own; else as they are."""
    if not form.wrapped:
        return "\n".join(calls)
    before, after = (spelled(text) for text in form.wrappers[0])
    return "\n".join(f"{before}\n{call}\n{after}" for call in calls)


def tagged(form: Format, shape: Shape, body: Parameters, call: Written) -> str:
    """A call whose arguments are marked parameters."""
    line = "\n" if body.trim else ""
    opener = spelled(form.openers[0])
    head = f'{opener} name="{call.name}">' if shape.head and shape.head.attribute else f"{opener}{call.name}>"
    parts = [head]
    for key, value in members(call):
        tag = f'{spelled(body.key)} name="{key}">' if body.head.attribute else f"{spelled(body.key)}{key}>"
        parts.append(f"{tag}{line}{value}{line}{spelled(body.close)}")
    return "\n".join([*parts, spelled(form.close)])


def members(call: Written) -> list[tuple[str, str]]:
    """The members of the arguments: strings raw, every other value as the JSON text that it is."""
    text = arguments_of(call)
    scan = json.JSONDecoder().raw_decode
    found: list[tuple[str, str]] = []
    at = skip(text, 1)
    while text[at] != "}":
        key, at = scan(text, at)
        at = skip(text, skip(text, at) + 1)
        value, end = scan(text, at)
        found.append((str(key), value if isinstance(value, str) else text[at:end]))
        at = skip(text, end)
        if text[at] == ",":
            at = skip(text, at + 1)
    return found


def skip(text: str, at: int) -> int:
    """Past white space."""
    while text[at] in " \t\r\n":
        at += 1
    return at
