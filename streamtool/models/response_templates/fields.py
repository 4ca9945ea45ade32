"""The fields of a response template: how each is opened and closed, and where its parts are."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen

from statemachine.formats import REASONING, Anchor, Format, FormatError, Section
from streamtool.core.json_value import Json
from streamtool.models.families import is_special
from streamtool.models.response_templates.patterns import (
    Anything,
    Edge,
    Hole,
    Way,
    literal,
    marker,
    trimmed,
    unique,
    ways_of,
)

VERSION: Final = 1
TEMPLATE_KEYS: Final = frozenset(("version", "defaults", "fields", "start_anchor", "start_anchor_pattern"))
FIELD_KEYS: Final = frozenset(
    (
        *("open", "open_pattern", "close", "close_pattern", "content", "content_args"),
        *("repeats", "join", "optional", "transform", "transform_each"),
    )
)
REASONING_FIELDS: Final = ("reasoning_content", "reasoning", "thinking")
TEXT: Final = "content"
CALLS: Final = "tool_calls"
placeholder = re.compile(r"\{(\w+(?:\.\w+)*)\}").fullmatch


@frozen
class TemplateField:
    """One field of a template."""

    name: str
    opens: tuple[Way, ...]
    """Spellings of the opener; empty if the field is all text that no other field claims."""
    closes: tuple[Way, ...]
    content: str
    arguments: Mapping[str, Json]
    """Arguments of the content parser."""
    transform: Json
    each: bool
    """Whether `transform` is applied to each element of a list."""

    @property
    def in_prompt(self) -> bool:
        """Whether the prompt may contain the opener: a spelling of it is `^`, or a condition on the text after it."""
        return any(not marker(without_edges(way)) for way in self.opens)

    def error(self, reason: str) -> FormatError:
        """Return the error for a construct of this field that is not supported."""
        return FormatError(f"field '{self.name}': {reason}")


def fields_of(template: Mapping[str, Json]) -> dict[str, TemplateField]:
    """Return the fields of a template.

    Raises:
        FormatError: the template is not a table of version 1, or has keys or fields that are not known.
    """
    if template.get("version", VERSION) != VERSION:
        raise FormatError(f"version {template['version']!r} of response templates is not supported, only {VERSION}")
    if unknown := sorted(set(template) - TEMPLATE_KEYS):
        raise FormatError(f"unknown key {unknown[0]!r}")
    fields = template.get("fields")
    if not isinstance(fields, Mapping) or not fields:
        raise FormatError("'fields' must be an object with at least one field")
    found = {name: field_of(name, raw) for name, raw in fields.items() if name != "role"}
    implicit = [name for name, field in found.items() if not field.opens]
    if len(implicit) > 1:
        raise FormatError(f"only one field may have no opener, not {' and '.join(implicit)}")
    return found


def field_of(name: str, raw: Json) -> TemplateField:
    """Return one field of a template."""
    if name not in (TEXT, CALLS, *REASONING_FIELDS):
        known = ", ".join((TEXT, CALLS, *REASONING_FIELDS))
        raise FormatError(f"field '{name}': a reply has no such part; the fields are {known}")
    if not isinstance(raw, Mapping):
        raise FormatError(f"field '{name}' must be an object")
    if unknown := sorted(set(raw) - FIELD_KEYS):
        raise FormatError(f"field '{name}': unknown key {unknown[0]!r}")
    arguments = raw.get("content_args", {})
    content = raw.get("content", "text")
    if not isinstance(arguments, Mapping) or not isinstance(content, str):
        raise FormatError(f"field '{name}': 'content' must be a string, and 'content_args' an object")
    if name != CALLS and content != "text":
        raise FormatError(f"field '{name}': its content is text, and cannot be parsed as {content!r}")
    opens, closes = anchors(name, raw, "open"), anchors(name, raw, "close")
    return TemplateField(
        name, opens, closes, content, arguments, raw.get("transform"), raw.get("transform_each") is True
    )


def anchors(name: str, raw: Mapping[str, Json], key: str) -> tuple[Way, ...]:
    """Return the spellings of a field's opener or closer."""
    given, pattern = raw.get(key), raw.get(f"{key}_pattern")
    if given is not None and pattern is not None:
        raise FormatError(f"field '{name}': '{key}' and '{key}_pattern' exclude each other")
    if isinstance(pattern, str):
        try:
            return tuple(ways_of(pattern))
        except FormatError as error:
            raise FormatError(f"field '{name}': {key}_pattern: {error}") from None
    literals = [given] if isinstance(given, str) else given
    if literals is None and pattern is None:
        return ()
    if (
        not isinstance(literals, list | tuple)
        or not literals
        or not all(isinstance(one, str) and one for one in literals)
    ):
        raise FormatError(
            f"field '{name}': '{key}' must be a string or a list of strings, and '{key}_pattern' a string"
        )
    return tuple(literal(str(one)) for one in literals)


def markers(ways: Iterable[Way], *, lines: bool = False) -> list[str]:
    """Return the markers of spellings, without those that are empty, such as the end of the reply. With `lines`, their
    line breaks are written.
    """
    return unique(text for way in ways if (text := marker(without_edges(way), lines=lines)))


def without_edges(way: Way) -> Way:
    """Return a spelling without conditions, and without text that is not fixed at its beginning."""
    kept = trimmed(way)
    while kept and isinstance(kept[0], Anything):
        kept = trimmed(kept[1:])
    return kept


def without_prefixes(found: Sequence[str], close: str) -> tuple[str, ...]:
    """Return the markers; if one begins with another, or with the closer, that beginning is removed."""
    out: list[str] = []
    for text in sorted(found, key=len):
        begun = next((one for one in (close, *out) if one and text != one and text.startswith(one)), "")
        short = text.removeprefix(begun).removeprefix("{*}")
        if short not in out:
            out.append(short)
    return tuple(out)


def starts_of(template: Mapping[str, Json]) -> tuple[Way, ...]:
    """Return the spellings of the beginning of a reply in the prompt, which models repeat before further messages."""
    found = anchors("start_anchor", {"open": template.get("start_anchor")}, "open")
    return found or anchors("start_anchor", {"open_pattern": template.get("start_anchor_pattern")}, "open")


# ---- text and reasoning


def sections_of(fields: Mapping[str, TemplateField]) -> Iterator[Section]:
    """Yield the sections of reasoning and text, except those that every format has."""
    known = {(section.open, section.close) for section in REASONING}
    marked = any(field.name == TEXT and field.opens for field in fields.values())
    for field in fields.values():
        if field.opens:
            yield from (one for one in all_sections(field, in_turn=marked) if (one.open, one.close) not in known)


def all_sections(field: TemplateField, *, in_turn: bool = False) -> Iterator[Section]:
    """Yield the sections of one field, one for each pair of an opener and a closer. With `in_turn`, all text is in
    sections too, so a section may follow any other one.
    """
    text = field.name == TEXT
    opens, closes = markers(field.opens), markers(field.closes)
    if not closes:
        raise field.error("a field with an opener needs a closer")
    for opener in opens or [opener_for(field, closes)]:
        anchor = Anchor.ANYWHERE if in_turn or is_special(opener) else Anchor.REPLY
        for close in closes:
            yield Section(opener, close, text=text, anchor=anchor, alone=field.in_prompt and not text)


def ends_at_calls(field: TemplateField, form: Format) -> bool:
    """Return whether a call ends the field even without its closer, because a condition on the text that follows is one
    of its closers.

    Raises:
        FormatError: the condition is not the opener of calls.
    """
    conditions = [piece.text for way in field.closes if (piece := only_edge(way)) and piece.text.startswith("(?=")]
    openers = [*form.openers, *(opener for opener, _ in form.wrappers)]
    for condition in conditions:
        for way in ways_of(condition.removeprefix("(?=").removesuffix(")")):
            begins = marker(without_edges(way))
            if (
                field.name == TEXT
                or not begins
                or not any(one.startswith(begins) or begins.startswith(one) for one in openers)
            ):
                raise field.error(
                    f"the condition {condition!r} as a closer is not supported: it is not the opener of calls"
                )
    return bool(conditions)


def only_edge(way: Way) -> Edge | None:
    """Return the condition that a spelling consists of, or None if it contains a literal."""
    return way[0] if len(way) == 1 and isinstance(way[0], Edge) else None


def opener_for(field: TemplateField, closes: Sequence[str]) -> str:
    """Return the opener for a closer, for a field that the prompt opens."""
    for close in closes:
        if close.startswith("</"):
            return close.replace("/", "", 1)
    raise field.error("no literal opens the field")


@frozen
class Shape:
    """Where `transform` finds the parts of a call: paths of keys. The first key is `content` or a group."""

    name: tuple[str, ...]
    arguments: tuple[str, ...]
    id: tuple[str, ...] = ()


def shape_of(field: TemplateField) -> Shape:
    """Return where the parts of a call are found.

    Raises:
        FormatError: `transform` does not contain the name and the arguments of a function.
    """
    if field.transform is None:
        whole: Json = "{content}"
        if field.each:
            raise field.error("'transform_each' needs a 'transform'")
        return Shape(("content", "function", "name"), ("content", "function", "arguments"), ("content", "id"))
    if not isinstance(field.transform, Mapping):
        raise field.error("'transform' must be an object with 'function'")
    whole = field.transform.get("function", field.transform)
    call = (path_of(field, field.transform["id"]),) if "id" in field.transform else ()
    if isinstance(whole, Mapping):
        if unknown := sorted(set(whole) - {"name", "arguments", "id", "type"}):
            raise field.error(f"'transform' gives a function the unknown part {unknown[0]!r}")
        if "name" not in whole or "arguments" not in whole:
            raise field.error("'transform' must give a function 'name' and 'arguments'")
        name, arguments = path_of(field, whole["name"]), path_of(field, whole["arguments"])
    else:
        path = path_of(field, whole)
        name, arguments = (*path, "name"), (*path, "arguments")
    if field.each:  # the keys of each element are in scope
        name, arguments = ("content", *name), ("content", *arguments)
        call = (("content", *call[0]),) if call else ()
    return Shape(name, arguments, call[0] if call else ())


def path_of(field: TemplateField, value: Json) -> tuple[str, ...]:
    """Return the path in a placeholder."""
    found = placeholder(value) if isinstance(value, str) else None
    if found is None:
        raise field.error(f"'transform' must contain a placeholder, such as {{name}}, instead of {value!r}")
    return tuple(found[1].split("."))


def groups_of(way: Way) -> list[str]:
    """Return the names of the groups of a spelling."""
    return [piece.name for piece in way if isinstance(piece, Hole)]
