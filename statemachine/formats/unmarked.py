"""What is a call without a marker of its own: by its keys, as a list of expressions, or first in a code fence."""

import re
from collections.abc import Iterable, Mapping
from enum import Enum

from attrs import frozen

from statemachine.formats.format import Anchor, Envelope, Expression, Format, Variant, openers_of
from statemachine.formats.openers import Keys, Opening, Role, envelope_of, is_array, keys_of
from statemachine.runs import Run

TICKS = 32
"""Backticks of a fence, at most."""
INFO = 40
"""Characters of a fence's info string."""
FENCE_LINE = rf"`{{3,{TICKS}}}+(?!`)[^`\r\n]{{0,{INFO}}}"
FENCE_BEGUN = rf"(?:`{{1,{TICKS}}}+|{FENCE_LINE}(?:\r?|\r?\n[ \t\r\n]{{0,64}}+))\Z"
"""A fence of which too little has come to say whether a call stands first in it."""


class Found(Enum):
    """What the text markers stand for besides openers."""

    BARE = "an object, or an array of objects, without a marker"
    LIST = "a list of call expressions without a marker"
    TICK = "a backtick"
    FENCE = "a code fence"
    TAG = "the opener of a tag of calls, where it opens no call"


@frozen
class Unmarked:
    """The calls that stand in text without a marker."""

    anywhere: Mapping[str, Keys]
    """How an object or array is read, by its first character."""
    reply: Mapping[str, Keys]
    """The same while no text has come."""
    expressions: Opening | None
    """A list of call expressions, while no text has come."""

    @classmethod
    def of(cls, formats: Iterable[Format]) -> "Unmarked":
        """Those of a set of formats."""
        reply, anywhere, arrays, calls = by_keys(formats)
        keys: dict[str, Keys] = {}
        keys_in_reply: dict[str, Keys] = {}
        if reply or anywhere:
            keys["{"] = keys_of(anywhere + calls)
            keys_in_reply["{"] = keys_of(reply + anywhere + calls)
        if arrays:
            keys["["] = keys_in_reply["["] = keys_of(arrays + anywhere)
        lists = ((form, variant) for form, variant, body in expressions_of(formats) if body.bare)
        return cls(keys, keys_in_reply, next(lists, None))

    def markers(self) -> list[tuple[str, Found]]:
        """How they begin, lists of expressions excepted."""
        markers: list[tuple[str, Found]] = []
        if "{" in self.reply:
            markers.append(("{{*}{quote}", Found.BARE))
            names = [name for name, key in self.reply["{"].items() if key.role is not Role.TYPE]
            markers += [(f"{{{{*}}{name}{{*}}:", Found.BARE) for name in names]
        if "[" in self.reply:
            markers.append(("[{*}{{*}{quote}", Found.BARE))
        return markers


@frozen
class Fences:
    """The calls that may stand first in a code fence."""

    keys: Mapping[str, Keys]
    """How an object or array is read there, by its first character."""
    infos: frozenset[str]
    """Info strings that say that such a call follows."""
    expressions: Mapping[str, Opening]
    """Call expressions, by the info string."""

    @classmethod
    def of(cls, formats: Iterable[Format]) -> "Fences":
        """Those of a set of formats."""
        reply, _, arrays, calls = by_keys(formats)
        fences = [form for form in formats if form.fence and isinstance(form.variants[0].body, Envelope)]
        objects = [*reply, *fences, *(calls if fences else [])]
        keys: dict[str, Keys] = {}
        if objects:
            keys["{"] = keys_of(objects)
        if objects or arrays:
            keys["["] = keys_of(objects + arrays)
        expressions: dict[str, Opening] = {}
        for form, variant, _body in expressions_of(formats):
            for info in form.fence:
                expressions.setdefault(info, (form, variant))
        return cls(keys, frozenset(info for form in fences for info in form.fence), expressions)

    def __bool__(self) -> bool:
        return bool(self.keys or self.expressions)

    def plain(self, opens: str) -> Run:
        """A fence up to a first thing in it that is no call; `opens` matches what a call may begin with."""
        infos = "|".join(map(re.escape, self.expressions))
        other = rf"(?!`++[ \t]*+(?i:{infos})[ \t]*+(?:\r?\n|\r?\Z))" if infos else ""
        return Run(rf"(?=(`+)){other}{FENCE_LINE}\r?\n[ \t\r\n]{{0,64}}+(?!\Z|{opens})")


def by_keys(formats: Iterable[Format]) -> tuple[list[Format], list[Format], list[Format], list[Format]]:
    """The formats without a marker that are told by their keys: objects before any text, objects anywhere, and
    arrays; and all formats that list calls under a key.
    """
    bare = [form for form in formats if not form.fence and not openers_of(form, form.variants[0])]
    arrays = [form for form in bare if is_array(form)]
    objects = [form for form in bare if form not in arrays]
    reply = [form for form in objects if form.anchor is Anchor.REPLY]
    anywhere = [form for form in objects if form not in reply]
    return reply, anywhere, arrays, [form for form in formats if envelope_of(form).calls]


def expressions_of(formats: Iterable[Format]) -> list[tuple[Format, Variant, Expression]]:
    """The variants that are call expressions, with their bodies."""
    return [
        (form, variant, variant.body)
        for form in formats
        for variant in form.variants
        if isinstance(variant.body, Expression)
    ]
