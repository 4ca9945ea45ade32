"""Tree of openers, and the keys of envelopes.

Openers form a tree of `Opener`s: `<tool_call>` may be followed by JSON (an envelope), by a name (a name rule) or, since
it is also the wrapper of another format, by that format's opener. Formats that begin with the same literal are
distinguished by the text after it, so no format has to know about the others.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache

from attrs import define, evolve, field, frozen

from statemachine.formats.format import (
    ONLY_CALLS_KEYS,
    Anchor,
    Envelope,
    Expression,
    Format,
    MessageBody,
    Parameters,
    Variant,
    openers_of,
)
from statemachine.formats.markers import Markers


class KeyRole(Enum):
    """Role of a key in an envelope."""

    NAME = "name"
    ARGUMENTS = "arguments"
    ID = "id"
    TYPE = "type"
    NEST = "nest"
    CALLS = "calls"
    THOUGHT = "thought"
    FINAL = "final"


@frozen
class EnvelopeKey:
    """Key of an envelope: its role, and the format that it belongs to. `nests` means that an object under this key
    contains the call.
    """

    role: KeyRole
    format: Format
    nests: bool = False
    decisive: bool = False
    """Whether only calls have this key, so that an object with no other keys is a call without arguments."""


Keys = Mapping[str, EnvelopeKey]
Continuation = tuple[Format, Variant]
"""A format, and the variant of it that follows an opener."""
ANY_NAME = ""
"""Key in `Keys` that stands for any key: that key is the tool name, and its value is the arguments."""


CALLS_KEY = "tool_calls"
"""Key of an array of calls, which is read after any marker."""


def keys_after_marker(form: Format) -> dict[str, EnvelopeKey]:
    """Return the envelope keys of a format after a marker, where an object may also contain an array of calls."""
    return keys_of([form]) | {CALLS_KEY: EnvelopeKey(KeyRole.CALLS, form)}


def keys_of(formats: Iterable[Format]) -> dict[str, EnvelopeKey]:
    """Return the envelope keys of these formats; a key used by several formats belongs to the first of them."""
    found: dict[str, EnvelopeKey] = {}
    for form in formats:
        body = envelope_of(form)
        if body.keyed:
            found.setdefault(ANY_NAME, EnvelopeKey(KeyRole.NAME, form))
        if body.thought:
            found.setdefault(body.thought, EnvelopeKey(KeyRole.THOUGHT, form))
        if body.final:
            found.setdefault(body.final[0], EnvelopeKey(KeyRole.FINAL, form))
        if body.calls:
            found.setdefault(body.calls, EnvelopeKey(KeyRole.CALLS, form))
        for name in body.name:
            found.setdefault(name, EnvelopeKey(KeyRole.NAME, form, name in body.nest, name in ONLY_CALLS_KEYS))
        for name in body.nest:
            found.setdefault(name, EnvelopeKey(KeyRole.NEST, form, nests=True))
        for name in body.arguments:
            found.setdefault(name, EnvelopeKey(KeyRole.ARGUMENTS, form))
        for name in body.id:
            found.setdefault(name, EnvelopeKey(KeyRole.ID, form))
        found.setdefault("type", EnvelopeKey(KeyRole.TYPE, form))
    return found


def envelope_of(form: Format) -> Envelope:
    """Return the envelope of a format, or the default envelope if it has none, since JSON is accepted inside any
    format's markers.
    """
    return next((variant.body for variant in form.variants if isinstance(variant.body, Envelope)), DEFAULT_ENVELOPE)


DEFAULT_ENVELOPE = Envelope()
NameText = Callable[[str, int], re.Match[str] | None]
NO_NAME = r"\s<>{}\[\]()\"'`,=|"
"""Characters that no name contains, in character-class syntax."""
name_text = re.compile(f"[^{NO_NAME}]*+").match


@lru_cache(maxsize=256)
def name_text_before(ends: tuple[str, ...]) -> NameText:
    """Return a match for a name that one of these markers ends. A character that begins one of them ends the name,
    unless it is a letter, a digit or a slash.
    """
    first = "".join(sorted({end[0] for end in ends if re.match(rf"[^\w/{NO_NAME}]", end)}))
    return re.compile(rf"[^{NO_NAME}{re.escape(first)}]*+").match if first else name_text


BLOCK_ENDS = (">", "]")
"""Last characters that the opener and the closer of a block must have if the block may be empty."""


closing_tag = re.compile(r"</((?:\{ns\})?[\w:.-]+)").match


def with_name(close: str, openers: Iterable[str]) -> str:
    """Return a closer that may repeat the name in its opener (`</function=f>`), if one of the openers is the beginning
    of a tag with a name; otherwise, return the closer unchanged.
    """
    tag = closing_tag(close)
    named = tag is not None and any(opener in (f"<{tag[1]}=", f"<{tag[1]}{{ }}") for opener in openers)
    return f"{tag[0]}{{=}}{close[tag.end() :]}" if tag is not None and named else close


@lru_cache(maxsize=256)
def closers_of_call(form: Format) -> tuple[str, ...]:
    """Return the closers of a call of a format."""
    ends = [end for variant in form.variants if isinstance(variant.body, MessageBody) for end in variant.body.ends]
    own = with_name(form.close, form.openers)
    return tuple(dict.fromkeys(close for close in (own, *ends, *form.stops) if close))


@lru_cache(maxsize=256)
def closers_of_parameters(form: Format) -> tuple[str, ...]:
    """Return the closers of a call of a format with marked parameters."""
    return tuple(close for close in closers_of_call(form) if close and close not in form.stops)


@lru_cache(maxsize=256)
def openers_in_values(form: Format) -> tuple[str, ...]:
    """Return the openers of a call of a format with marked parameters, as they may occur in the value of one."""
    if form.anchor is Anchor.LINE:
        return tuple("\n" + opener for opener in form.openers)
    return tuple(opener for opener in form.openers if not opener[0].isalpha())  # others occur only inside a wrapper


def is_array(form: Format) -> bool:
    """Return whether calls in a format are written as an array."""
    return envelope_of(form).array


@define(eq=False)
class Opener:
    """Node of the tree: an opener, and its possible continuations."""

    literal: str
    keys: dict[str, Keys] = field(factory=dict, init=False)
    """First character of an envelope that may follow, `{` or `[` → how the envelope is read."""
    names: list[Continuation] = field(factory=list, init=False)
    """Formats in which the name of the call may follow."""
    ends: Markers[tuple[Format, Variant, str]] | None = field(default=None, init=False)
    """Markers that end such a name, each with the format it belongs to."""
    name_text: NameText = field(default=name_text, init=False)
    """Matches such a name, up to the first character that cannot be part of it."""
    continuation: Continuation | None = field(default=None, init=False)
    """Format of the expression or message header that may follow, if any."""
    tool: tuple[Format, Variant, str] | None = field(default=None, init=False)
    """Format whose opener is the name of a tool, if this is such an opener, and that tool."""
    close: str = field(default="", init=False)
    """Closer, if the opener opens a wrapper."""
    closes: dict[str, None] = field(factory=dict, init=False)
    """Closers of the block that the opener opens."""
    only_calls: bool = field(default=False, init=False)
    """Whether other text than calls is noise between the opener, which opens a wrapper, and its closer."""
    by_keys: bool = field(default=False, init=False)
    """Whether an object that follows is identified as a call only by its keys."""
    line: bool = field(default=False, init=False)
    """Whether the opener is recognized only at the start of a line; if so, only blanks may separate it from a name."""
    reply: bool = field(default=False, init=False)
    """Whether the opener is recognized only where nothing but whitespace, reasoning or calls precedes it."""
    fenced: bool = field(default=False, init=False)
    """Whether the format writes a code fence around what follows."""
    doubled: bool = field(default=False, init=False)
    """Whether the opener consists of several tokens, and the first of them is repeated."""
    lead: str = field(default="", init=False)
    """Beginning of the name, if the opener is part of it."""
    _children: dict[str, "Opener"] = field(factory=dict, init=False)
    children: "Markers[Opener] | None" = field(default=None, init=False)
    """Openers that may follow, if this opener opens a wrapper."""

    def __repr__(self) -> str:
        return f"Opener({self.literal!r})"

    @property
    def blank(self) -> bool:
        """Whether blanks may separate the opener from a name."""
        return self.literal.endswith("{_}")

    def child(self, literal: str) -> "Opener":
        """Return the node of an opener inside this wrapper."""
        return self._children.setdefault(literal, Opener(literal))

    def inner(self, opener: "Opener") -> "Opener":
        """Return the node of an opener inside this wrapper, or the opener itself if it has the same meaning there."""
        return self._children.get(opener.literal, opener)

    def contains(self, opener: "Opener") -> bool:
        """Return whether this wrapper may contain this opener, or is opened by it again."""
        return opener is self or opener.literal in self._children

    def add(self, form: Format, variant: Variant) -> None:
        """Add a variant that may follow. The first format to claim a continuation keeps it."""
        if form.close and form.close.endswith(BLOCK_ENDS) and self.literal.endswith(BLOCK_ENDS):
            self.closes[form.close] = None
        self.fenced = self.fenced or bool(form.body_fence)
        match variant.body:
            case Envelope():
                self.keys.setdefault("[" if is_array(form) else "{", keys_after_marker(form))
            case Expression() | MessageBody() if variant.name_rule is None:
                self.continuation = self.continuation or (form, variant)
            case _:
                self.names.append((form, variant))

    def inherit(self, openers: Mapping[str, "Opener"]) -> None:
        """Let JSON after an opener inside this wrapper be read as it is after the same opener outside any wrapper,
        unless the inner opener has its own rules for JSON.
        """
        for child in self._children.values():
            if not child.keys and child.literal in openers:
                child.keys = openers[child.literal].keys
            child.inherit(openers)

    def finish(self, around: Mapping[str, Format]) -> None:
        """Build the tables needed for reading; `around` maps the opener of a wrapper to its format."""
        # After an opener, an object is accepted where an array is expected and vice versa, because models confuse the
        # two. A wrapper without an envelope reads JSON in the same way as its format.
        for keys in list(self.keys.values()):
            self.keys.setdefault("{", keys)
            self.keys.setdefault("[", keys)
        if self.close and not self.keys:
            self.keys["{"] = self.keys["["] = keys_after_marker(around[self.literal])
            self.by_keys = envelope_of(around[self.literal]).by_keys
        if self.close:
            self.closes[self.close] = None
            self.only_calls = around[self.literal].only_calls
        ends: dict[str, tuple[Format, Variant, str]] = {}
        for form, variant in self.names:
            for end in (*variant.name_rule.ends, variant.name_rule.id) if variant.name_rule else ():
                if end:
                    ends.setdefault(end, (form, variant, end))
            body = variant.body
            if isinstance(body, Parameters) and variant.name_rule and body.key in variant.name_rule.ends:
                ends.setdefault(body.close, (form, variant, body.close))  # models write a closer that closes nothing
        if ends:
            self.name_text = name_text_before(tuple(ends))
            self.ends = Markers(ends.items(), any_case=any("{_}" in end for end in ends))
        for child in self._children.values():
            child.finish(around)
        if self._children:
            self.children = Markers(self._children.items())


def tree_of(formats: Sequence[Format], tools: Sequence[str]) -> dict[str, Opener]:
    """Return the roots of the tree: openers that may appear on their own. In some formats, the names of `tools` are
    openers too.
    """
    roots: dict[str, Opener] = {}
    around: dict[str, Format] = {}
    for form in formats:
        for variant in form.variants:
            for literal in openers_of(form, variant):
                if "{tool}" in literal:
                    add_tool_openers(roots, form, variant, literal, tools)
                    continue
                for opener in nodes_of(roots, form, literal, around):
                    opener.line = form.anchor is Anchor.LINE
                    opener.add(form, variant)
    for form in formats:
        for literal in form.bare_openers:
            lead = literal.removesuffix("{a}")
            alone = Opener(literal)
            if not any(opener.tool and text.startswith(lead) for text, opener in roots.items()):
                alone = roots.setdefault(literal, alone)  # otherwise, it may be the name of a tool
            alone.line = True
            for opener in (alone, *(roots[text].child(literal) for text, _ in form.wrappers)):
                opener.lead = lead
                for variant in form.variants:
                    opener.add(form, variant)
    for opener in roots.values():
        opener.finish(around)
        opener.inherit(roots)
    return roots


def nodes_of(roots: dict[str, Opener], form: Format, literal: str, around: dict[str, Format]) -> list[Opener]:
    """Return the nodes for all positions of a format's opener in the tree: on its own, and inside each of its wrappers,
    which can be nested.
    """
    found: list[Opener] = []
    outer: list[Opener] = []
    # Wrappers are optional, so each opener is a child of all the wrappers outside it, not only of the next one. An
    # opener that begins with a letter would match in the middle of prose, so it cannot appear on its own.
    for text, close in (*form.wrappers, (literal, "")):
        found = [opener.child(text) for opener in outer]
        if not text[0].isalpha() or form.anchor is Anchor.LINE:
            found.append(roots.setdefault(text, Opener(text)))
        first, *others = text.split("{*}")
        if others and not close and first.endswith(BLOCK_ENDS) and not first[0].isalpha():
            again = f"{first}{{*}}{text}"
            doubled = [*(opener.child(again) for opener in outer), roots.setdefault(again, Opener(again))]
            for opener in doubled:
                opener.doubled = True
            found += doubled
        if close:
            around.setdefault(text, form)
            for opener in found:
                opener.close = close
            outer += found
    return found


def add_tool_openers(
    roots: dict[str, Opener], form: Format, variant: Variant, literal: str, tools: Sequence[str]
) -> None:
    """Add an opener for each tool, for a format whose opener is the name of the tool."""
    for tool in tools:
        if re.fullmatch(r"[\w.:-]+", tool):
            text = literal.replace("{tool}", tool)
            own = evolve(form, openers=(text,), close=form.close.replace("{tool}", tool))
            opener = roots.setdefault(text, Opener(literal))
            opener.tool = opener.tool or (own, variant, tool)
            opener.reply = form.anchor is Anchor.REPLY
