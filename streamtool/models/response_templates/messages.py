"""Formats of messages whose headers decide what they are."""

import re
from collections.abc import Mapping, Sequence

from statemachine.formats import Format, MessageBody, Variant
from streamtool.models.response_templates.calls import split
from streamtool.models.response_templates.fields import TEXT, TemplateField, groups_of, markers, shape_of, without_edges
from streamtool.models.response_templates.patterns import Way, spelled, unique

first_token = re.compile(r"<[^<>]*>|\[[^\[\]]*\]").match
last_token = re.compile(r"(?:<[^<>]*>|\[[^\[\]]*\])\Z").search
last_word = re.compile(r"[^\s<>|\[\]]+\Z").search


def messages_of(
    name: str, starts: Sequence[Way], calls: TemplateField, others: Mapping[str, TemplateField]
) -> Format | None:
    """Return the format of messages whose header decides what they are, or None if the template describes none.

    In such a template, all openers of text and reasoning are one word between the same two markers, and the opener of a
    call contains its name and ends with the second marker. `starts` are the spellings of the beginning of a message.
    """
    shape = shape_of(calls)
    heads = [way for way in map(without_edges, calls.opens) if shape.name[0] in groups_of(way)]
    plain = {key: markers(field.opens) for key, field in others.items()}
    listed = [text for texts in plain.values() for text in texts]
    if not heads or not listed or not all(plain.values()) or calls.content not in ("json", "text"):
        return None
    opener, begin = first_token(listed[0]), last_token(listed[0])
    if opener is None or begin is None or opener.end() > begin.start():
        return None
    kinds = {key: tuple(text[opener.end() :].removesuffix(begin[0]) for text in texts) for key, texts in plain.items()}
    head = split(heads[0], shape.name[0])
    recipient = last_word(str(head.before[-1])) if head.before else None
    ends = [str(way[-1]) for way in heads]
    if not all(text.startswith(opener[0]) and text.endswith(begin[0]) for text in listed) or recipient is None:
        return None
    if not all(end.endswith(begin[0]) for end in ends) or not all(
        word.isidentifier() for way in kinds.values() for word in way
    ):
        return None
    begins = [text for text in markers(starts) if not text.startswith(opener[0])]
    written = "".join(map(spelled, heads[0])).removesuffix(begin[0])
    if not written.startswith((opener[0], *begins)):
        if not begins:
            raise calls.error(f"the opener {written!r} does not begin with a marker")
        written = f"{begins[0]} {written}"
    closes = markers(calls.closes)
    body = MessageBody(
        openers=(*begins, opener[0]),
        begin=begin[0],
        recipient=recipient[0],
        channel=opener[0],
        reasoning=tuple(word for key, way in kinds.items() if key != TEXT for word in way),
        text=kinds.get(TEXT, ()),
        written=written,
        ends=tuple(unique((*closes, *(close for field in others.values() for close in markers(field.closes))))),
    )
    return Format(name, variants=(Variant(body),), close=closes[0] if closes else "", lines=False)
