"""Arguments in the notation of each kind of body; the writer adds the markers around them."""

import json
import re
from collections.abc import Iterator, Mapping

from statemachine import schema
from statemachine.bodies.scalars import escape_entities
from statemachine.formats.format import Envelope, Expression, Format, Parameters
from statemachine.formats.markers import spell
from statemachine.json.state import WORDS
from statemachine.writing.arguments import Written, arguments_of, items, members, rewrite_json

one_word = re.compile(r"[A-Za-z_][^\s\"'<>/={}]*").fullmatch
identifier = re.compile(r"[A-Za-z_]\w*").fullmatch
flag_key = re.compile(r"[\w.-]{1,255}").fullmatch
bare_key = re.compile(r"(?![#/)])[^\s:=,<>{}\[\]\"'](?:[^:=,<>{}\[\]\"'\r\n]*[^\s:=,<>{}\[\]\"'])?").fullmatch
surrogate = re.compile("[\ud800-\udfff]").search
PYTHON: Mapping[str, str] = {"true": "True", "false": "False", "null": "None", ",": ", ", ":": ": "}
NOTHING: Mapping[str, str] = {}
MAX_DEPTH = 32
"""Maximum depth of elements; deeper values are written as JSON."""


def json_string(text: str) -> str:
    """Return the text as a JSON string, with as few escapes as possible."""
    return json.dumps(text, ensure_ascii=surrogate(text) is not None)


# ---- an envelope


def envelope(call: Written, body: Envelope) -> str:
    """Write one envelope object."""
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
    """Write one call expression.

    If a key is not a valid parameter name, all arguments are written as one dict. A string that contains the format's
    quote marker is written as JSON.
    """
    return call.name + write_arguments(call, body)


def write_arguments(call: Written, body: Expression) -> str:
    """Write the arguments of an expression in brackets."""
    listed = list(members(arguments_of(call)))
    keys = [key for key, _, _ in listed]
    left, right = body.brackets[0], body.brackets[1]
    if body.flag:
        if not all(map(flag_key, keys)) or len(set(keys)) < len(keys):
            return arguments_of(call)
        inner = " ".join(f"{body.flag}{key} {without_slashes(text)}" for key, _, text in listed)
    elif body.quote:
        inner = ",".join(
            f"{write_key(json.dumps(key), body)}{body.assign}{write_value(text, body)}" for key, _, text in listed
        )
    elif all(map(identifier, keys)) and len(set(keys)) == len(keys):
        inner = ", ".join(f"{key}{body.assign}{write_value(text, body)}" for key, _, text in listed)
    else:
        inner = write_value(arguments_of(call), body)
    return f"{left}{inner}{right}"


def write_value(text: str, body: Expression) -> str:
    """Write a value in the language of an expression."""
    if body.quote:
        return rewrite_json(text, lambda found: mark_string(found, body), lambda found: write_key(found, body), NOTHING)
    return rewrite_json(text, python_string, python_string, PYTHON)


def without_slashes(text: str) -> str:
    r"""Rewrite JSON without `\/`, the only escape that other languages read differently."""
    return rewrite_json(text, python_string, python_string, NOTHING) if "\\/" in text else text


def python_string(text: str) -> str:
    """Rewrite a JSON string so that Python reads the same value from it."""
    return json_string(json.loads(text))


def mark_string(text: str, body: Expression) -> str:
    """Write a JSON string between the format's quote markers."""
    value = json.loads(text)
    return json_string(value) if body.quote in value else f"{body.quote}{value}{body.quote}"


def write_key(text: str, body: Expression) -> str:
    """Write a key, bare if possible."""
    value = json.loads(text)
    return value if bare_key(value) else mark_string(text, body)


# ---- marked parameters


def parameters(call: Written, form: Format, body: Parameters) -> list[str]:
    """Write each argument between its markers, or all of them as one object if a closer cannot repeat one of the
    keys.
    """
    arguments = arguments_of(call)
    listed = list(members(arguments))
    if "{key}" in body.close and not all(one_word(key) for key, _, _ in listed):
        return [arguments]
    return [parameter(form, body, key, value, text) for key, value, text in listed]


def parameter(form: Format, body: Parameters, key: str, value: object, text: str) -> str:
    """Write one argument: a string verbatim, and any other value as its JSON text or as elements."""
    if isinstance(value, str):
        text = quote_if_needed(value, body)
    elif body.item and round_trips(value, body):
        text = elements(body, value, text)
    line = "\n" if body.trim else ""
    start = opener(form, body, key, value)
    before = "" if start.endswith("\n") else line
    return f"{start}{before}{text}{line}{spell(body.close).replace('{key}', key)}"


def opener(form: Format, body: Parameters, key: str, value: object) -> str:
    """Write the opener of a parameter, with its key and type mark."""
    start = spell(body.key)
    ends = body.key_rule.ends[0]
    between = "\n" if form.lines else ""
    if body.type_marks:
        marks = [spell(mark.replace("{*}", between)) for mark in body.type_marks]
        return f"{start}{key}{marks[0]}{json_type(value)}{marks[1]}"
    if not body.key_rule.attribute:
        return f"{start}{key}{spell(ends.replace('{*}', between))}"
    mark = ""
    if body.marks_strings or body.type_attribute in schema.ANY:
        marked = "string" if body.marks_strings else body.type_attribute
        mark = f' {body.type_attribute}="{"true" if json_type(value) == marked else "false"}"'
    elif body.type_attribute:
        mark = f' {body.type_attribute}="{json_type(value)}"'
    return f'{start} {body.key_rule.attribute}="{escape_entities(key)}"{mark}{spell(ends)}'


def json_type(value: object) -> str:
    """Return the most specific JSON type of a value."""
    return schema.json_types_of(value)[0]


def quote_if_needed(value: str, body: Parameters) -> str:
    """Write a string, between the format's quote markers if it contains anything that could be mistaken for markup."""
    if body.quote and (set(value) & set("<&") or value != value.strip()):
        return f"{body.quote[0]}{value}{body.quote[1]}"
    return value


def elements(body: Parameters, value: object, text: str) -> str:
    """Write a nonempty object or array as elements; return any other value unchanged."""
    if isinstance(value, str):
        return value
    inner: Iterator[tuple[str, object, str]]
    if isinstance(value, dict) and value:
        inner = members(text)
    elif isinstance(value, list) and value:
        inner = ((body.item, part, part_text) for part, part_text in items(text))
    else:
        return text
    start, end, after = spell(body.key), spell(body.key_rule.ends[0]), spell(body.close)
    return "".join(
        f"{start}{key}{end}{elements(body, part, part_text)}{after.replace('{key}', key)}"
        for key, part, part_text in inner
    )


def round_trips(value: object, body: Parameters, depth: int = MAX_DEPTH) -> bool:
    """Return whether the elements of a value can be read only as this value, whatever the schema is."""
    if isinstance(value, str):
        return not is_ambiguous(value, body)
    if isinstance(value, list | dict) and not depth:
        return False
    if isinstance(value, list):
        return all(round_trips(item, body, depth - 1) for item in value)
    if isinstance(value, dict):
        named = all(map(one_word, value)) and next(iter(value), "") != body.item
        return named and all(round_trips(member, body, depth - 1) for member in value.values())
    return True


def is_ambiguous(text: str, body: Parameters) -> bool:
    """Return whether a string between markers could be mistaken for another value or for markup."""
    plain = text.strip()
    return (
        plain[:1] in tuple('{["-0123456789') or plain in WORDS or text != plain or text.endswith(spell(body.key)[0])
    ) or spell(body.key)[:2] in text
