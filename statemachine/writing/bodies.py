"""Each body's own way to write arguments; what stands around them is the writer's."""

import json
import re
from collections.abc import Iterator, Mapping

from statemachine import schema
from statemachine.formats.format import Envelope, Expression, Format, Parameters
from statemachine.formats.markers import spelled
from statemachine.json.state import WORDS
from statemachine.writing.arguments import Written, arguments_of, items, members, retold

one_word = re.compile(r"[A-Za-z_][^\s\"'<>/={}]*").fullmatch
identifier = re.compile(r"[A-Za-z_]\w*").fullmatch
flag_key = re.compile(r"[\w.-]{1,255}").fullmatch
bare_key = re.compile(r"(?![#/)])[^\s:,<>{}\[\]\"'](?:[^:,<>{}\[\]\"'\r\n]*[^\s:,<>{}\[\]\"'])?").fullmatch
surrogate = re.compile("[\ud800-\udfff]").search
PYTHON: Mapping[str, str] = {"true": "True", "false": "False", "null": "None", ",": ", ", ":": ": "}
NOTHING: Mapping[str, str] = {}
DEPTH = 32
"""Levels of elements that are written; what is deeper is written as JSON."""


def in_json(text: str) -> str:
    """The text as a JSON string, as readable as it can be."""
    return json.dumps(text, ensure_ascii=surrogate(text) is not None)


# ---- an envelope


def envelope(call: Written, body: Envelope) -> str:
    """One envelope object."""
    arguments = arguments_of(call)
    if body.as_string:
        arguments = json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(call.name, ensure_ascii=False)
    if body.keyed:
        return f"{{{name}: {arguments}}}"
    inner = f'"{body.name[0]}": {name}, "{body.arguments[0]}": {arguments}'
    if not body.written_nest:
        return f"{{{inner}}}"
    kind = '"type": "function", ' if body.calls else ""
    thought = f'"{body.thought}": "", ' if body.thought else ""
    return f'{{{kind}{thought}"{body.written_nest}": {{{inner}}}}}'


# ---- an expression


def expression(call: Written, body: Expression) -> str:
    """One call expression.

    Arguments whose keys are no names of parameters stand in one dict; strings that hold the format's quote are written
    as JSON writes them.
    """
    return call.name + bracketed(call, body)


def bracketed(call: Written, body: Expression) -> str:
    """The arguments of an expression in their brackets."""
    listed = list(members(arguments_of(call)))
    keys = [key for key, _, _ in listed]
    left, right = body.brackets[0], body.brackets[1]
    if body.flag:
        if not all(map(flag_key, keys)) or len(set(keys)) < len(keys):
            return arguments_of(call)
        inner = " ".join(f"{body.flag}{key} {without_slashes(text)}" for key, _, text in listed)
    elif body.quote:
        inner = ",".join(
            f"{marked_key(json.dumps(key), body)}{body.assign}{expressed(text, body)}" for key, _, text in listed
        )
    elif all(map(identifier, keys)) and len(set(keys)) == len(keys):
        inner = ", ".join(f"{key}{body.assign}{expressed(text, body)}" for key, _, text in listed)
    else:
        inner = expressed(arguments_of(call), body)
    return f"{left}{inner}{right}"


def expressed(text: str, body: Expression) -> str:
    """A value in the language of an expression."""
    if body.quote:
        return retold(text, lambda found: marked(found, body), lambda found: marked_key(found, body), NOTHING)
    return retold(text, python_string, python_string, PYTHON)


def without_slashes(text: str) -> str:
    r"""JSON without `\/`, the one escape that other languages read in another way."""
    return retold(text, python_string, python_string, NOTHING) if "\\/" in text else text


def python_string(text: str) -> str:
    """A JSON string as Python reads it too."""
    return in_json(json.loads(text))


def marked(text: str, body: Expression) -> str:
    """A JSON string between the format's quotes."""
    value = json.loads(text)
    return in_json(value) if body.quote in value else f"{body.quote}{value}{body.quote}"


def marked_key(text: str, body: Expression) -> str:
    """A key, bare if it can be."""
    value = json.loads(text)
    return value if bare_key(value) else marked(text, body)


# ---- marked parameters


def parameters(call: Written, form: Format, body: Parameters) -> list[str]:
    """Each argument between its markers."""
    return [parameter(form, body, key, value, text) for key, value, text in members(arguments_of(call))]


def parameter(form: Format, body: Parameters, key: str, value: object, text: str) -> str:
    """One argument: strings raw, every other value as the JSON text that it is, or as elements."""
    if isinstance(value, str):
        text = quoted(value, body)
    elif body.item and nests(value, body):
        text = elements(body, value, text)
    line = "\n" if body.trim else ""
    return f"{opener(form, body, key, value)}{line}{text}{line}{spelled(body.close).replace('{key}', key)}"


def opener(form: Format, body: Parameters, key: str, value: object) -> str:
    """The opener of a parameter, its key and what marks its type."""
    start = spelled(body.key)
    ends = body.key_rule.ends[0]
    between = "\n" if form.lines else ""
    if body.type_marks:
        marks = [spelled(mark.replace("{*}", between)) for mark in body.type_marks]
        return f"{start}{key}{marks[0]}{kind(value)}{marks[1]}"
    if not body.key_rule.attribute:
        return f"{start}{key}{spelled(ends.replace('{*}', between))}"
    mark = ""
    if body.type_attribute in schema.ANY:
        mark = f' {body.type_attribute}="{"true" if kind(value) == body.type_attribute else "false"}"'
    elif body.type_attribute:
        mark = f' {body.type_attribute}="{kind(value)}"'
    return f'{start} {body.key_rule.attribute}="{key}"{mark}{spelled(ends)}'


def kind(value: object) -> str:
    """The JSON type of a value, by the name that says most."""
    return schema.kinds(value)[0]


def quoted(value: str, body: Parameters) -> str:
    """A string, between the format's quotes if it holds what could be taken for markup."""
    if body.quote and (set(value) & set("<&") or value != value.strip()):
        return f"{body.quote[0]}{value}{body.quote[1]}"
    return value


def elements(body: Parameters, value: object, text: str) -> str:
    """An object or an array that has members, as elements; other values as they are."""
    if isinstance(value, str):
        return value
    inner: Iterator[tuple[str, object, str]]
    if isinstance(value, dict) and value:
        inner = members(text)
    elif isinstance(value, list) and value:
        inner = ((body.item, part, part_text) for part, part_text in items(text))
    else:
        return text
    start, end, after = spelled(body.key), spelled(body.key_rule.ends[0]), spelled(body.close)
    return "".join(
        f"{start}{key}{end}{elements(body, part, part_text)}{after.replace('{key}', key)}"
        for key, part, part_text in inner
    )


def nests(value: object, body: Parameters, depth: int = DEPTH) -> bool:
    """True if the elements of a value can only be read as this value, whatever a schema says of them."""
    if isinstance(value, str):
        return not ambiguous(value, body)
    if isinstance(value, list | dict) and not depth:
        return False
    if isinstance(value, list):
        return all(nests(item, body, depth - 1) for item in value)
    if isinstance(value, dict):
        named = all(map(one_word, value)) and next(iter(value), "") != body.item
        return named and all(nests(member, body, depth - 1) for member in value.values())
    return True


def ambiguous(text: str, body: Parameters) -> bool:
    """True if a string between markers could be taken for another value, or for markup."""
    plain = text.strip()
    return (
        plain[:1] in tuple('{["-0123456789') or plain in WORDS or text != plain or text.endswith(spelled(body.key)[0])
    ) or spelled(body.key)[:2] in text
