"""A GBNF grammar for llama.cpp: calls to these tools in this format, with or without free text before them.

A call consists of the arguments and the text that the format writes around them. The arguments are JSON that follows
the tool's schema, or marked parameters or keyword arguments one after the other (if the tool declares no parameters:
parameters with any name, or one JSON object). Arguments of any other kind are free text up to the text that ends them.
Text may precede the calls unless a call is forced; nothing may follow them. If the server applies the grammar only
after a trigger (`lazy`), the grammar begins with the trigger.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from statemachine.formats.markers import spell
from statemachine.writing.bodies import identifier, parameter
from streamtool.core.conversation import Tool
from streamtool.forcing.call_frames import CallFrame, allows_several, frame, parameters_of, separator
from streamtool.forcing.gbnf import (
    EMPTY,
    GbnfRules,
    GrammarTooLargeError,
    SchemaConverter,
    alternation,
    in_order,
    literal,
    text_until,
)
from streamtool.schemas.parameters import Schema
from streamtool.schemas.portable import arguments_schema, without_schema

_HOLE: Final = "some_value"
_KEY: Final = "some_key"
_SAMPLES: Final[Mapping[str, object]] = {
    "integer": 0,
    "number": 0.5,
    "boolean": True,
    "null": None,
    "object": {},
    "array": [],
}
_MAX_CALLS: Final = 8
"""Maximum number of calls in a reply: without a limit, small models write calls until the token limit. In BFCL, none of
the 530 answers with parallel calls has more, and six have more than four.
"""
_MAX_TRIGGERS: Final = 4000
"""Maximum total length of the triggers: each character becomes a rule."""


def call_grammar(
    tools: Sequence[Tool], format: str, *, forced: bool, parallel: bool, lazy: bool
) -> tuple[str, tuple[str, ...]] | None:
    """Return the grammar and its triggers (empty if it applies from the beginning), or None if the grammar is too
    large.

    If a tool's schema is too large, any object is accepted as its arguments. `lazy` has an effect only if no call is
    forced.
    """
    made = _grammar(tools, format, forced=forced, parallel=parallel, lazy=lazy)
    return made or _grammar(
        [without_schema(tool) for tool in tools], format, forced=forced, parallel=parallel, lazy=lazy
    )


def _grammar(
    tools: Sequence[Tool], format: str, *, forced: bool, parallel: bool, lazy: bool
) -> tuple[str, tuple[str, ...]] | None:
    frames = [frame(format, tool.name) for tool in tools]
    triggers = tuple(dict.fromkeys(around.trigger for around in frames))
    if not forced and sum(map(len, triggers)) > _MAX_TRIGGERS:
        return None
    rules = GbnfRules()
    try:
        inner = [_inner(rules, format, tool, around) for tool, around in zip(tools, frames, strict=True)]
        call = rules.add(alternation(f"{literal(one.begin)} {body}" for one, body in zip(frames, inner, strict=True)))
        more = _further_calls(rules, call, format) if parallel and allows_several(format) else ""
        if forced or lazy:
            root = f"{call} {more}".rstrip()
        else:
            ends = {"": EMPTY}
            for trigger in triggers:
                rest = [
                    f"{literal(one.begin[len(trigger) :])} {body}"
                    for one, body in zip(frames, inner, strict=True)
                    if one.trigger == trigger
                ]
                ends[trigger] = rules.add(f"( {alternation(rest)} ) {more}".rstrip())
            root = text_until(rules, ends, line=frames[0].line)
        rules.add(root, "root")
    except GrammarTooLargeError:
        return None
    return rules.text(), triggers if lazy and not forced else ()


def _further_calls(rules: GbnfRules, call: str, format: str) -> str:
    between = separator(format)
    more = f"{{0,{_MAX_CALLS - 1}}}"
    return rules.add(f"( {literal(between)} {call} ){more}" if between else f"{call}{more}")


def _inner(rules: GbnfRules, format: str, tool: Tool, around: CallFrame) -> str:
    """Return a grammar element for a tool's arguments and the end of the call."""
    if around.inside == "free":
        return text_until(rules, {around.end: EMPTY})
    schema = arguments_schema(tool, flat=around.inside == "parameters")
    converter = SchemaConverter(rules, schema)
    end = literal(around.end) if around.end else ""
    if around.inside == "json":
        return f"{converter.value(schema)} {end}".rstrip()
    if around.inside == "keywords":
        return f"{_keywords(rules, converter, schema)} {end}".strip()
    marked = _MarkedParameters(rules, format, tool.name, converter)
    return rules.add(f"{marked.all(schema)} {end}".strip() or EMPTY)


def _keywords(rules: GbnfRules, converter: SchemaConverter, schema: Schema) -> str:
    """Return a grammar element for keyword arguments in the order of the schema, or for one JSON object that contains
    all of them if the keys are not known, or are not identifiers.
    """
    properties, required = schema.get("properties"), frozenset(schema.get("required", ()))
    if not properties and schema.get("additionalProperties", True) is False:
        return ""
    if not properties or not all(identifier(str(key)) for key in properties):
        return converter.value(schema)
    members = [(f"{literal(f'{key}=')} {converter.value(value)}", key in required) for key, value in properties.items()]
    return in_order(rules, members, literal(", "))


class _MarkedParameters:
    """The rules for marked parameters, which are in the order of the schema; optional ones may be omitted."""

    __slots__ = ("_between", "_body", "_close", "_converter", "_form", "_rules")

    def __init__(self, rules: GbnfRules, format: str, tool: str, converter: SchemaConverter) -> None:
        self._rules = rules
        self._form, self._body = parameters_of(format)
        self._converter = converter
        self._close = spell(self._form.close).replace("{tool}", tool)
        self._between = literal("\n") if self._form.lines else ""

    def all(self, schema: Schema) -> str:
        """Return a grammar element for all parameters, the text between them and the end of the call."""
        properties, required = schema.get("properties"), frozenset(schema.get("required", ()))
        if not properties:
            return self._any(schema)
        rest = self._between
        for key, value in reversed(list(properties.items())):
            one = self._rules.add(alternation(self._ways(str(key), value)))
            written = f"{self._between} {one}".strip()
            rest = self._rules.add(f"{written if key in required else f'( {written} )?'} {rest}".rstrip())
        return rest

    def _any(self, schema: Schema) -> str:
        """Return a grammar element for parameters that the schema does not name, or for one JSON object."""
        others = schema.get("additionalProperties", True)
        if others is False:
            return self._between
        whole = f"{self._between} {self._converter.value(schema)}".lstrip()
        if "{key}" in self._body.close:  # a grammar cannot repeat the key
            return f"( {whole} )? {self._between}".rstrip()
        one = self._rules.add(alternation(self._ways(None, {} if others is True else others)))
        more = f"{self._between} {one}".lstrip()
        return f"( {whole} | ( {more} )* ) {self._between}".rstrip()

    def _ways(self, key: str | None, schema: Schema) -> Iterator[str]:
        """Yield the ways to write the parameter `key` (None stands for any name): raw text if it may be a string, JSON
        for other types.
        """
        found = self._converter.resolve(schema)
        types = self._converter.types(found)
        begin, end = self._around(key, _HOLE)
        if "string" in types and "enum" not in found:
            yield f"{begin} {self._text(end)}"
            return
        if texts := [one for one in found.get("enum", ()) if isinstance(one, str)]:
            yield f"{begin} ( {alternation(map(literal, texts))} ) {literal(end)}"
        for kind, sample in _SAMPLES.items():
            if kind in types and not (kind == "integer" and "number" in types):
                begin, end = self._around(key, sample)
                yield f"{begin} {self._converter.value(self._converter.narrow(found, kind), 1)} {literal(end)}"

    def _text(self, end: str) -> str:
        """Return the name of a rule for raw text up to the end of a value. It must not contain the call's closer, which
        would end the value as well.
        """
        texts, key = self._rules.texts, (end, self._close)
        if key not in texts:
            texts[key] = text_until(self._rules, {end: EMPTY}, never=[self._close])
        return texts[key]

    def _around(self, key: str | None, sample: object) -> tuple[str, str]:
        """Return a grammar element for the text before a parameter's value, and the text after the value."""
        begin, _, end = parameter(self._form, self._body, key or _KEY, sample, _HOLE).rpartition(_HOLE)
        if key is not None:
            return literal(begin), end
        before, _, after = begin.partition(_KEY)
        return f"{literal(before)} {self._rules.json_rule('key')} {literal(after)}", end
