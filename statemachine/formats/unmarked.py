"""Calls without a marker, recognized by their keys, as a list of expressions, or as the first thing in a code fence."""

import re
from collections.abc import Iterable, Mapping
from enum import Enum

from attrs import frozen

from statemachine.formats.format import Anchor, Envelope, Expression, Format, Variant, openers_of
from statemachine.formats.openers import Continuation, KeyRole, Keys, envelope_of, is_array, keys_of
from statemachine.stream.runs import Run

MAX_TICKS = 32
"""Maximum number of backticks in a fence."""
MAX_INFO = 40
"""Maximum length of a fence's info string."""
FENCE_LINE = rf"`{{3,{MAX_TICKS}}}+(?!`)[^`\r\n]{{0,{MAX_INFO}}}"
FENCE_BEGUN = rf"(?:`{{1,{MAX_TICKS}}}+|{FENCE_LINE}(?:\r?|\r?\n[ \t\r\n]{{0,64}}+))\Z"
"""Fence that is still too short to show whether the first thing in it is a call."""
JSON_INFOS = frozenset(["", "json"])
"""Info strings of fences in which JSON without a marker may be a call after text."""


class TextFinding(Enum):
    """Findings in text other than openers and closers."""

    BARE = "an object, or an array of objects, without a marker"
    LIST = "a list of call expressions without a marker"
    TICK = "a backtick"
    FENCE = "a code fence"
    TAG = "the opener of a call tag that opens no call"
    STRUCK = "the opener of text that is struck out"
    TURN = "the beginning of a turn"


@frozen(eq=False, repr=False)
class Unmarked:
    """Calls that appear in text without a marker."""

    anywhere: Mapping[str, Keys]
    """First character of an object or array → how it is read."""
    reply: Mapping[str, Keys]
    """Like `anywhere`, as long as no text has been seen."""
    expressions: Continuation | None
    """How to read a list of call expressions, until text has been seen."""

    @classmethod
    def of(cls, formats: Iterable[Format]) -> "Unmarked":
        """Return the unmarked calls that these formats allow."""
        reply, anywhere, arrays, calls = formats_by_keys(formats)
        keys: dict[str, Keys] = {}
        keys_in_reply: dict[str, Keys] = {}
        if reply or anywhere:
            keys["{"] = keys_of(anywhere + calls)
            keys_in_reply["{"] = keys_of(reply + anywhere + calls)
        if arrays:
            keys["["] = keys_in_reply["["] = keys_of(arrays + anywhere)
        lists = ((form, variant) for form, variant, body in expressions_of(formats) if body.bare)
        return cls(keys, keys_in_reply, next(lists, None))

    def markers(self) -> list[tuple[str, TextFinding]]:
        """Return the markers that these calls begin with, except for lists of expressions."""
        markers: list[tuple[str, TextFinding]] = []
        if "{" in self.reply:
            markers.append(("{{*}{quote}", TextFinding.BARE))
            names = [name for name, key in self.reply["{"].items() if key.role is not KeyRole.TYPE]
            markers += [(f"{{{{*}}{name}{{*}}:", TextFinding.BARE) for name in names]
        if "[" in self.reply:
            markers.append(("[{*}{{*}{quote}", TextFinding.BARE))
        return markers


@frozen(eq=False, repr=False)
class Fences:
    """Calls that may be the first thing in a code fence."""

    keys: Mapping[str, Keys]
    """First character of an object or array in a fence → how it is read."""
    infos: frozenset[str]
    """Info strings that announce such a call."""
    expressions: Mapping[str, Continuation]
    """Info string → how to read its call expressions."""
    openers: Mapping[str, frozenset[str]]
    """Info string → openers of the formats that are written in such a fence."""

    @classmethod
    def of(cls, formats: Iterable[Format]) -> "Fences":
        """Return the fenced calls that these formats allow."""
        reply, _, arrays, calls = formats_by_keys(formats)
        fences = [
            form for form in formats if form.fence and not form.openers and isinstance(form.variants[0].body, Envelope)
        ]
        objects = [*reply, *fences, *(calls if fences else [])]
        keys: dict[str, Keys] = {}
        if objects:
            keys["{"] = keys_of(objects)
        if objects or arrays:
            keys["["] = keys_of(objects + arrays)
        expressions: dict[str, Continuation] = {}
        for form, variant, _body in expressions_of(formats):
            for info in form.fence:
                expressions.setdefault(info, (form, variant))
        openers = {info: frozenset(form.openers) for form in formats if form.openers for info in form.fence}
        return cls(keys, frozenset(info for form in fences for info in form.fence), expressions, openers)

    def announces(self, info: str) -> bool:
        """Return whether an info string announces a call."""
        return info in self.infos or info in self.expressions or info in self.openers

    def begun_after_text(self) -> str:
        """Return the expression for a fence after text that is too short to show whether the first thing in it is a
        call.
        """
        info = rf"[^`\r\n]{{0,{MAX_INFO}}}+\r?\Z|{self._possible()}\r?\n[ \t\r\n]{{0,64}}+\Z"
        return rf"`{{1,{MAX_TICKS}}}+(?:\Z|(?<=```)(?:{info}))"

    def _possible(self) -> str:
        """Return the expression for info strings of fences that may begin with a call after text."""
        infos = sorted({*self.infos, *self.expressions, *self.openers, *JSON_INFOS}, reverse=True)
        return rf"[ \t]*+(?i:{'|'.join(map(re.escape, infos))})[ \t]*+"

    def plain(self, opens: str, *, after_text: bool) -> Run:
        """Return the run for a fence up to the first thing in it, which is not a call; `opens` matches what a call may
        begin with. After text, a fence whose info string excludes a call ends with its line.
        """
        infos = "|".join(map(re.escape, self.expressions))
        other = rf"(?!`++[ \t]*+(?i:{infos})[ \t]*+(?:\r?\n|\r?\Z))" if infos else ""
        opening = rf"{FENCE_LINE}\r?\n[ \t\r\n]{{0,64}}+(?!\Z|{opens})"
        if after_text:
            opening = rf"(?:(?!`++{self._possible()}\r?\n){FENCE_LINE}\r?\n|{opening})"
        return Run(rf"(?=(`+)){other}{opening}")


def formats_by_keys(formats: Iterable[Format]) -> tuple[list[Format], list[Format], list[Format], list[Format]]:
    """Return the formats whose calls are identified by their keys instead of a marker, and the formats that list calls
    under a key.

    The former are returned as three lists: objects before any text, objects anywhere, and arrays.
    """
    bare = [form for form in formats if not form.fence and not openers_of(form, form.variants[0])]
    arrays = [form for form in bare if is_array(form)]
    objects = [form for form in bare if form not in arrays]
    reply = [form for form in objects if form.anchor is Anchor.REPLY]
    anywhere = [form for form in objects if form not in reply]
    return reply, anywhere, arrays, [form for form in formats if envelope_of(form).calls]


def expressions_of(formats: Iterable[Format]) -> list[tuple[Format, Variant, Expression]]:
    """Return the variants that are call expressions, with their formats and bodies."""
    return [
        (form, variant, variant.body)
        for form in formats
        for variant in form.variants
        if isinstance(variant.body, Expression)
    ]
