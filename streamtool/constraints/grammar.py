"""A grammar in GBNF for llama.cpp: calls of these tools in this format, with or without free text before them.

A call is what the format writes around it, and between that the arguments: JSON by the tool's schema, marked parameters
one after the other (of any name, or one JSON object, if the tool names none), or, where arguments are neither, any text
up to what ends them. Text may stand before the calls if
nothing is forced; behind them the reply is over. Where the server begins to hold the model only at a trigger, the
grammar begins there too (`lazy`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from statemachine.formats.markers import spelled
from statemachine.writing.bodies import parameter
from streamtool.constraints.call_frames import CallFrame, frame, parameters_of, separator, several
from streamtool.constraints.gbnf import EMPTY, Converter, GbnfRules, GrammarTooLargeError, joined, literal, until
from streamtool.constraints.portable_schema import arguments_schema, plain
from streamtool.conversation import Tool
from streamtool.schema import Schema

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
_TRIGGERS: Final = 4000
"""Characters of all triggers: each is a rule."""


def grammar(
    tools: Sequence[Tool], format: str, *, forced: bool, parallel: bool, lazy: bool
) -> tuple[str, tuple[str, ...]] | None:
    """The grammar, and the triggers from which it holds (none if it holds from the beginning); None: it is too large.

    A schema that is too large is any object. `lazy` only matters if nothing is forced.
    """
    made = _grammar(tools, format, forced=forced, parallel=parallel, lazy=lazy)
    return made or _grammar([plain(tool) for tool in tools], format, forced=forced, parallel=parallel, lazy=lazy)


def _grammar(
    tools: Sequence[Tool], format: str, *, forced: bool, parallel: bool, lazy: bool
) -> tuple[str, tuple[str, ...]] | None:
    frames = [frame(format, tool.name) for tool in tools]
    triggers = tuple(dict.fromkeys(around.trigger for around in frames))
    if not forced and sum(map(len, triggers)) > _TRIGGERS:
        return None
    rules = GbnfRules()
    try:
        inner = [_inner(rules, format, tool, around) for tool, around in zip(tools, frames, strict=True)]
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


def _inner(rules: GbnfRules, format: str, tool: Tool, around: CallFrame) -> str:
    """The arguments of a tool, and what ends the call."""
    if around.inside == "free":
        return until(rules, {around.end: EMPTY})
    schema = arguments_schema(tool, flat=around.inside == "parameters")
    converter = Converter(rules, schema)
    end = literal(around.end) if around.end else ""
    if around.inside == "json":
        return f"{converter.value(schema)} {end}".rstrip()
    marked = _Marked(rules, format, tool.name, converter)
    return rules.add(f"{marked.all(schema)} {end}".strip() or EMPTY)


class _Marked:
    """Marked parameters, in the order of the schema; those that are not required may be left out."""

    __slots__ = ("_between", "_body", "_close", "_converter", "_form", "_rules", "_texts")

    def __init__(self, rules: GbnfRules, format: str, tool: str, converter: Converter) -> None:
        self._rules = rules
        self._texts: dict[str, str] = {}
        self._form, self._body = parameters_of(format)
        self._converter = converter
        self._close = spelled(self._form.close).replace("{tool}", tool)
        self._between = literal("\n") if self._form.lines else ""

    def all(self, schema: Schema) -> str:
        """All of them, and what stands between them and the end."""
        properties, required = schema.get("properties"), frozenset(schema.get("required", ()))
        if not properties:
            return self._any(schema)
        rest = self._between
        for key, value in reversed(list(properties.items())):
            one = self._rules.add(joined(self._ways(str(key), value)))
            written = f"{self._between} {one}".strip()
            rest = self._rules.add(f"{written if key in required else f'( {written} )?'} {rest}".rstrip())
        return rest

    def _any(self, schema: Schema) -> str:
        """Parameters that have no names in the schema, or one JSON object."""
        others = schema.get("additionalProperties", True)
        if others is False:
            return self._between
        whole = f"{self._between} {self._converter.value(schema)}".lstrip()
        if "{key}" in self._body.close:  # which no grammar can repeat
            return f"( {whole} )? {self._between}".rstrip()
        one = self._rules.add(joined(self._ways(None, {} if others is True else others)))
        more = f"{self._between} {one}".lstrip()
        return f"( {whole} | ( {more} )* ) {self._between}".rstrip()

    def _ways(self, key: str | None, schema: Schema) -> Iterator[str]:
        """The ways to write one parameter (None: of any name): raw text where it may be a string, else JSON."""
        found = self._converter.resolved(schema)
        types = self._converter.types(found)
        begin, end = self._around(key, _HOLE)
        if "string" in types and "enum" not in found:
            yield f"{begin} {self._text(end)}"
            return
        if texts := [one for one in found.get("enum", ()) if isinstance(one, str)]:
            yield f"{begin} ( {joined(map(literal, texts))} ) {literal(end)}"
        for kind, sample in _SAMPLES.items():
            if kind in types and not (kind == "integer" and "number" in types):
                begin, end = self._around(key, sample)
                yield f"{begin} {self._converter.value(self._converter.narrowed(found, kind), 1)} {literal(end)}"

    def _text(self, end: str) -> str:
        """Raw text up to the end of a value; the closer of the call would end it too."""
        if end not in self._texts:
            self._texts[end] = until(self._rules, {end: EMPTY}, never=[self._close])
        return self._texts[end]

    def _around(self, key: str | None, sample: object) -> tuple[str, str]:
        """What stands before a value, as elements of a rule, and the text behind it."""
        begin, _, end = parameter(self._form, self._body, key or _KEY, sample, _HOLE).rpartition(_HOLE)
        if key is not None:
            return literal(begin), end
        before, _, after = begin.partition(_KEY)
        return f"{literal(before)} {self._rules.plain('key')} {literal(after)}", end
