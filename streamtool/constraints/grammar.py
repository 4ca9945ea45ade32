"""A grammar in GBNF for llama.cpp: calls of these tools in this format, with or without free text before them.

A call is what the format writes around it, and between that the arguments: JSON by the tool's schema, marked parameters
one after the other, or, where arguments are no JSON, any text up to what ends them. Text may stand before the calls if
nothing is forced; behind them the reply is over. Where the server begins to hold the model only at a trigger, the
grammar begins there too (`lazy`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from statemachine.writing.bodies import parameter
from streamtool.constraints.call_frames import CallFrame, frame, parameters_of, separator, several
from streamtool.constraints.gbnf import EMPTY, Converter, GbnfRules, GrammarTooLargeError, joined, literal, until
from streamtool.constraints.json_schema import OBJECT, arguments_schema
from streamtool.conversation import Tool
from streamtool.schema import Schema

_HOLE: Final = "some_value"
_SAMPLES: Final[Mapping[str, object]] = {
    "integer": 0,
    "number": 0.5,
    "boolean": True,
    "null": None,
    "object": {},
    "array": [],
}
_TRIGGERS: Final = 4000
"""Characters of all triggers: each is a rule."""


def grammar(
    tools: Sequence[Tool], format: str, *, forced: bool, parallel: bool, lazy: bool
) -> tuple[str, tuple[str, ...]] | None:
    """The grammar, and the triggers from which it holds (none if it holds from the beginning); None: it is too large.

    A schema that is too large is any object. `lazy` only matters if nothing is forced.
    """
    made = _grammar(tools, format, forced=forced, parallel=parallel, lazy=lazy)
    return made or _grammar(tools, format, forced=forced, parallel=parallel, lazy=lazy, plain=True)


def _grammar(
    tools: Sequence[Tool], format: str, *, forced: bool, parallel: bool, lazy: bool, plain: bool = False
) -> tuple[str, tuple[str, ...]] | None:
    frames = [frame(format, tool.name) for tool in tools]
    triggers = tuple(dict.fromkeys(around.trigger for around in frames))
    if not forced and sum(map(len, triggers)) > _TRIGGERS:
        return None
    rules = GbnfRules()
    try:
        inner = [_inner(rules, format, tool, around, plain) for tool, around in zip(tools, frames, strict=True)]
        call = rules.add(joined(f"{literal(one.begin)} {body}" for one, body in zip(frames, inner, strict=True)))
        more = _more(rules, call, format) if parallel and several(format) else ""
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
                ends[trigger] = rules.add(f"( {joined(rest)} ) {more}".rstrip())
            root = until(rules, ends, line=frames[0].line)
        rules.add(root, "root")
    except GrammarTooLargeError:
        return None
    return rules.text(), triggers if lazy and not forced else ()


def _more(rules: GbnfRules, call: str, format: str) -> str:
    between = separator(format)
    return rules.add(f"( {literal(between)} {call} )*" if between else f"{call}*")


def _inner(rules: GbnfRules, format: str, tool: Tool, around: CallFrame, plain: bool) -> str:
    """The arguments of a tool, and what ends the call."""
    if around.inside == "free":
        return until(rules, {around.end: EMPTY})
    schema = OBJECT if plain else arguments_schema(tool)
    end = f" {literal(around.end)}" if around.end else ""
    if around.inside == "json":
        return Converter(rules, schema).arguments() + end
    properties = schema.get("properties")
    if not properties and schema.get("additionalProperties") is not False:
        return until(rules, {around.end: EMPTY})
    return rules.add(f"{_Marked(rules, format, schema).all()}{end}".strip() or EMPTY)


class _Marked:
    """Marked parameters, in the order of the schema; those that are not required may be left out."""

    __slots__ = ("_body", "_converter", "_form", "_rules", "_schema")

    def __init__(self, rules: GbnfRules, format: str, schema: Schema) -> None:
        self._rules = rules
        self._form, self._body = parameters_of(format)
        self._schema = schema
        self._converter = Converter(rules, schema)

    def all(self) -> str:
        """All of them, and what stands between them and the end."""
        whole = self._converter.merged(self._schema)
        properties, required = whole.get("properties") or {}, whole.get("required") or ()
        between = literal("\n") if self._form.lines else ""
        rest = between
        for key, value in reversed(list(properties.items())):
            one = self._rules.add(joined(self._ways(str(key), value)))
            written = f"{between} {one}".strip()
            rest = self._rules.add(f"{written if key in required else f'( {written} )?'} {rest}".rstrip())
        return rest

    def _ways(self, key: str, schema: Any) -> Iterator[str]:
        """The ways to write one parameter: raw text where it may be a string, else JSON."""
        found = self._converter.merged(schema)
        for kind in kinds_of(found):
            sample = _SAMPLES.get(kind, _HOLE)
            begin, _, end = parameter(self._form, self._body, key, sample, _HOLE).rpartition(_HOLE)
            values = found.get("enum")
            if kind != "string":
                value = self._converter.value({**found, "type": kind}, 1)
            elif isinstance(values, list | tuple) and values and all(isinstance(one, str) for one in values):
                value = f"( {joined(map(literal, values))} )"
            else:
                yield f"{literal(begin)} {until(self._rules, {end: EMPTY})}"
                return
            yield f"{literal(begin)} {value} {literal(end)}"


def kinds_of(schema: Schema) -> tuple[str, ...]:
    """The types that a parameter is written in; text where it may be a string, or where that is not known."""
    kinds = schema.get("type")
    listed = tuple(map(str, kinds)) if isinstance(kinds, list | tuple) else (str(kinds),)
    return listed if all(kind in _SAMPLES for kind in listed) else ("string",)
