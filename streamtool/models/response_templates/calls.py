"""Formats of the calls that a response template describes."""

import re
from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from statemachine.formats import (
    Anchor,
    Body,
    Envelope,
    Expression,
    Format,
    FormatError,
    JsonBody,
    NameRule,
    Parameters,
    Variant,
)
from statemachine.formats.format import ARGUMENT_KEYS, ID_KEYS, NAME_KEYS
from streamtool.models.response_templates.fields import (
    Shape,
    TemplateField,
    groups_of,
    markers,
    shape_of,
    without_edges,
)
from streamtool.models.response_templates.patterns import (
    Anything,
    Hole,
    PatternError,
    Space,
    Way,
    marker,
    spelled,
    trimmed,
    unique,
    ways_of,
)

attribute = re.compile(r"(.+?)(?:\s|\{[*n]\})+([\w.:-]+)=\Z", re.DOTALL).fullmatch
json_head = re.compile(r"(.*)\{(?:\{[*n]\})?\"(\w+)\"(?:\{[*n]\})?:(?:\{[*n]\})?\"\Z", re.DOTALL).fullmatch
json_middle = re.compile(r"\"(?:\{[*n]\})?,(?:\{[*n]\})?\"(\w+)\"(?:\{[*n]\})?:\Z", re.DOTALL).fullmatch
two_tags = re.compile(r"<([\w:.-]+)>(\{[*n]\})?(<([\w:.-]+)(?:[=\s]|\{ \}).*)", re.DOTALL).fullmatch
TICKS = "```"
code_fence = re.compile(r"```([\w ]+)(?:\{[*n]\})?").fullmatch
namespace = re.compile(r"(.*[>\]\s])([\w.]+\.)\Z", re.DOTALL).fullmatch


def calls_of(name: str, field: TemplateField) -> Format:
    """Return the format of the calls that a field describes."""
    shape = shape_of(field)
    ways = [without_edges(way) for way in field.opens]
    if any(shape.name[0] in groups_of(way) for way in field.closes):
        raise field.error(
            f"the name is the group '{shape.name[0]}' of close_pattern, so it is unknown until the call ends"
        )
    if field.content == "python-call-list":
        return expressions_of(name, field, shape, ways)
    if shape.name[0] == "content":
        return envelopes_of(name, field, shape, ways)
    if not ways or not all(shape.name[0] in groups_of(way) for way in ways if "," not in way[:1]):
        raise field.error(f"the group '{shape.name[0]}', which contains the name, is missing in open_pattern")
    if shape.arguments != ("content",):
        raise field.error(
            f"the arguments must be '{{content}}' if the name is a group, not '{{{'.'.join(shape.arguments)}}}'"
        )
    return headed_calls_of(name, field, shape, ways)


def closers(field: TemplateField) -> tuple[str, tuple[str, ...]]:
    """Return the closer of a call, and other markers that end it."""
    closes = markers(field.closes)
    # The first one is written, unless it is another one and more (`</call>` and `</call></calls>`).
    first = next((one for one in sorted(closes, key=len) if closes[0].startswith(one)), "")
    return first, tuple(close for close in closes if close != first)


def expressions_of(name: str, field: TemplateField, shape: Shape, ways: Sequence[Way]) -> Format:
    """Return the format of lists of calls such as `[f(a=1)]`."""
    if (shape.name, shape.arguments) != (("content", "name"), ("content", "arguments")) or not field.each:
        raise field.error("'python-call-list' needs 'transform_each', '{name}' and '{arguments}'")
    openers = tuple(markers(ways))
    close, stops = closers(field)
    return Format(
        name,
        openers=openers,
        variants=(Variant(Expression(array=True, bare=not openers)),),
        close=close,
        stops=stops,
        lines=False,
    )


def envelopes_of(name: str, field: TemplateField, shape: Shape, ways: Sequence[Way]) -> Format:
    """Return the format of JSON that contains the name and the arguments."""
    if field.content != "json":
        raise field.error(f"the name cannot be a part of content that is parsed as {field.content!r}")
    check_json(field)
    *nest, name_key = shape.name[1:]
    *same, arguments_key = shape.arguments[1:] or [""]
    if nest != same or len(nest) > 1 or not arguments_key:
        raise field.error("the name and the arguments must be members of the same object")
    openers = tuple(markers(ways, lines=True))
    close, stops = closers(field)
    fences = [fence_of(opener) for opener in openers]
    if any(opener.startswith(TICKS) for opener in openers):
        if not all(fences) or close not in ("", TICKS):
            raise field.error(f"the code fence {openers[0]!r} is not supported with other markers around it")
        openers, close = (), ""
    return Format(
        name,
        openers=openers,
        fence=tuple(filter(None, fences)),
        variants=(Variant(envelope(name_key, arguments_key, shape.id[-1:], nest, array=field.each)),),
        close=close,
        stops=stops,
        lines=bool(fences) and not openers,
        anchor=anchor_of(openers),
    )


def fence_of(opener: str) -> str:
    """Return the info string of a code fence, or "" if the opener is not a code fence with an info string."""
    found = code_fence(opener)
    return found[1] if found else ""


def anchor_of(openers: Sequence[str]) -> Anchor:
    """Return where these openers are recognized. One that begins with a letter would match in the middle of words, so
    it is recognized only at the start of a line.
    """
    return Anchor.LINE if any(opener[0].isalpha() for opener in openers) else Anchor.ANYWHERE


def envelope(
    name: str, arguments: str, id: Sequence[str] = (), nest: Sequence[str] = (), *, array: bool = False
) -> Envelope:
    """Return an envelope with these keys, which also reads the usual ones."""
    names = unique((name, *(key for key in NAME_KEYS if key != arguments)))
    keys = unique((arguments, *(key for key in ARGUMENT_KEYS if key != name)))
    base = Envelope()
    return Envelope(
        name=tuple(names),
        arguments=tuple(keys),
        id=tuple(unique((*id, *(key for key in ID_KEYS if key not in (name, arguments))))),
        nest=tuple(unique((*nest, *(key for key in base.nest if key != arguments)))),
        written_nest=nest[0] if nest else "",
        array=array,
    )


def check_json(field: TemplateField) -> None:
    """Reject arguments of the JSON parser that envelopes do not support."""
    if delimiters_of(field):
        raise field.error("'string_delims' is supported only if the name is a group of open_pattern")


def delimiters_of(field: TemplateField) -> str:
    """Return the delimiter of strings, or "" if they are written as in JSON."""
    pairs = field.arguments.get("string_delims") or []
    if not isinstance(pairs, list | tuple) or not all(isinstance(pair, list | tuple) and pair for pair in pairs):
        raise field.error("'string_delims' must be a list of pairs")
    ends = unique(str(pair[0]) for pair in pairs if list(pair) != ['"', '"'])
    if len(ends) > 1 or any(list(pair) != [pair[0], pair[0]] for pair in pairs):
        raise field.error("'string_delims' with several or with different delimiters are not supported")
    return ends[0] if ends else ""


def headed_calls_of(name: str, field: TemplateField, shape: Shape, ways: Sequence[Way]) -> Format:
    """Return the format of calls whose name is a group of their opener."""
    group = shape.name[0]
    heads = [split(way, group) for way in ways if group in groups_of(way)]
    close, stops = closers(field)
    if field.content == "xml-inline":
        listed = expression_of(field, heads)
        if listed is not None:
            return evolve(listed, name=name)
    before = [marker(head.before, lines=field.content != "xml-inline") for head in heads]
    if not all(before):
        raise field.error("no literal precedes the name, so calls cannot be recognized")
    if any(opener.startswith(TICKS) for opener in before):
        raise field.error(f"the code fence {before[0]!r} is not supported before a name")
    plain = json_envelope(name, field, heads)
    if plain is not None:
        return plain
    body, rule_ends = body_of(field, close)
    openers = tuple(unique(before))
    first = openers[0]
    if isinstance(body, Expression):
        return Format(
            name,
            openers=openers,
            variants=(Variant(body),),
            close=close,
            stops=stops,
            lines=False,
            anchor=anchor_of(openers),
        )
    named = attribute(first[:-1]) if first[-1:] in "\"'" and isinstance(body, Parameters) else None
    if named is not None:
        tags = [attributes_of(head.rest, first[-1]) for head in heads]
        openers = tuple(unique(f"{found[1]}{{ }}" for one in openers if (found := attribute(one[:-1]))))
        rule = NameRule(
            ends=tuple(unique(end for end, _ in tags)),
            attribute=named[2],
            ignored_words=tuple(unique(word for _, words in tags for word in words)),
        )
    else:
        rule = NameRule(ends=tuple(unique(end for head in heads for end in ends_of(head, body) or rule_ends)))
    spelled = namespace(first)
    if spelled is not None and named is None:
        prefix = spelled[2]
        openers = tuple(unique(one.removesuffix(prefix) for one in openers))
        rule = evolve(rule, spelling=f"{prefix}{{name}}")
    ids = unique(head.id for head in heads if head.id) if named is None else []
    if ids:
        kind, text = ids[0]
        if kind == "index":
            rule = evolve(rule, spelling=f"{rule.spelling}:{{index}}")
        elif kind == "before":
            rule = evolve(rule, id_end=text)
        else:
            rule = evolve(rule, id=text)
    elif named is None and isinstance(body, JsonBody) and (space := whitespace_after(field, group)):
        rule = evolve(rule, spelling=rule.spelling + space)
    form = Format(
        name,
        openers=openers,
        variants=(Variant(body, rule),),
        close=close,
        stops=stops,
        lines=False,
        anchor=anchor_of(openers),
    )
    return nested(form) if isinstance(body, Parameters) else wrapped(form)


def wrapped(form: Format) -> Format:
    """Return the format with the optional text before an opener and after the closer as a wrapper around all calls."""
    opener = min(form.openers, key=len)
    before = [one for one in form.openers if one != opener]
    after = [stop.removeprefix(form.close) for stop in form.stops if form.close and stop.startswith(form.close)]
    if len(before) != 1 or len(after) != 1 or not before[0].endswith(opener):
        return form
    outer, close = without_space(before[0].removesuffix(opener)), after[0].removeprefix("{*}")
    stops = tuple(stop for stop in form.stops if not stop.startswith(form.close))
    return evolve(form, openers=(opener,), wrappers=((outer, close),), around=outer, stops=stops)


def without_space(text: str) -> str:
    """Return a marker without the whitespace at its end."""
    return text.removesuffix("{*}").removesuffix("{n}")


def nested(form: Format) -> Format:
    """Return the format of marked parameters with the outer one of two tags as a wrapper, and with line breaks where
    the template allows them.
    """
    body = form.variants[0].body
    lines = isinstance(body, Parameters) and any("{*}" in end for end in body.key_rule.ends)
    form = wrapped(form)
    tags = [two_tags(opener) for opener in form.openers]
    first = tags[0]
    if first is None or form.wrappers or not all(tags) or not form.close.endswith(f"</{first[1]}>"):
        return evolve(form, lines=lines)
    outer, close = f"<{first[1]}>", f"</{first[1]}>"
    return evolve(
        form,
        wrappers=((outer, close),),
        around_each=outer,
        openers=tuple(unique(found[3] for found in tags if found)),
        close=form.close.removesuffix(close).removesuffix("{*}") or f"</{first[4]}>",
        lines=lines or bool(first[2]),
    )


def attributes_of(way: Way, quote: str) -> tuple[str, list[str]]:
    """Return the marker that ends a tag, and the names of the attributes between the name's value and that marker."""
    text = "".join("\0" if isinstance(piece, Anything | Hole) else spelled(piece) for piece in trimmed(way))
    found = re.fullmatch(rf"{quote}((?:\s+[\w:.-]+={quote}(?:\0|true|false){quote})*)\s*([^\0]+)", text)
    if found is None:
        raise PatternError(f"the tag that ends with {text!r} is not supported")
    return found[2], re.findall(r"([\w:.-]+)=", found[1])


@frozen
class Head:
    """Opener of a call that contains its name."""

    before: Way
    after: Way
    rest: Way
    """Everything after the name, including an id."""
    id: tuple[str, str] | None = None
    """Where an id is, and the marker between it and the name."""


def split(way: Way, group: str) -> Head:
    """Split an opener at the group that contains the name, and take an id out of it."""
    at = way.index(Hole(group))
    before, after = way[:at], way[at + 1 :]
    others = [i for i, piece in enumerate(after) if isinstance(piece, Hole | Anything)]
    if others and after[: others[0]] == (":",) and trimmed(after[others[0] + 1 :]):
        return Head(before, after[others[0] + 1 :], after, ("index", ":"))
    if others and after[: others[0]] and trimmed(after[others[0] + 1 :]):
        return Head(before, after[others[0] + 1 :], after, ("after", marker(after[: others[0]])))
    holes = [i for i, piece in enumerate(before) if isinstance(piece, Hole)]
    if holes and before[holes[0] + 1 :]:
        return Head(before[: holes[0]], after, after, ("before", marker(before[holes[0] + 1 :])))
    return Head(before, after, after)


def whitespace_after(field: TemplateField, group: str) -> str:
    """Return the whitespace that is written after the name, which is this group."""
    way = next(way for way in field.opens if group in groups_of(way))
    after = way[way.index(Hole(group)) + 1 :][:1]
    if after and isinstance(after[0], str):
        return after[0][: len(after[0]) - len(after[0].lstrip())]
    return after[0].written if after and isinstance(after[0], Space) else ""


def ends_of(head: Head, body: Body) -> tuple[str, ...]:
    """Return the marker that ends a name, or () if only whitespace separates the name from the body."""
    end = marker(head.after)
    if head.after and isinstance(head.after[0], str) and re.match(r"[\w/]", head.after[0]):
        raise PatternError(f"{head.after[0]!r} directly after a name may be a part of it")
    if end.endswith("{") and isinstance(body, JsonBody):
        end = end[:-1].removesuffix("{*}") or "{"
    return (end,) if end else ()


def json_envelope(name: str, field: TemplateField, heads: Sequence[Head]) -> Format | None:
    """Return the format of an object that is spelled out in the patterns, `{"name": "…", "parameters": …}`, or None."""
    head = json_head(marker(heads[0].before)) if field.content == "json" else None
    middle = json_middle(marker(heads[0].after)) if head is not None else None
    if head is None or middle is None:
        return None
    closes = [close.removeprefix("}").removeprefix("{*}") for close in markers(field.closes)]
    opener = without_space(head[1])
    return Format(
        name,
        openers=(opener,) if opener else (),
        variants=(Variant(envelope(head[2], middle[1])),),
        close=next(iter(filter(None, closes)), ""),
        lines=False,
    )


def body_of(field: TemplateField, close: str) -> tuple[Body, tuple[str, ...]]:
    """Return how the arguments are written after a name, and what ends a name that no marker follows."""
    match field.content:
        case "json":
            quote = delimiters_of(field)
            if quote:
                return Expression(brackets="{}", assign=":", quote=quote), ("{",)
            return JsonBody(), ("{",)  # it is the brace of the arguments
        case "text":
            return JsonBody(), ("{",)
        case "xml-inline":
            body = parameters_of(field)
            return body, tuple(filter(None, (body.key, close)))
        case other:
            raise field.error(f"arguments that are parsed as {other!r} cannot be streamed")


def parameters_of(field: TemplateField) -> Parameters:
    """Return how marked parameters are written."""
    heads = tags_of(field)
    first = heads[0]
    key, close = marker(first[0]), marker(first[2])
    if not key or not close or not first[1]:
        raise field.error("tag_pattern must have literals before the key, between key and value, and after the value")
    trim = any(isinstance(piece, Space) for piece in (*first[1][-1:], *first[2][:1]))
    types: list[str] = []
    named = attribute(key[:-1]) if key[-1] in "\"'" else None
    if named is not None:
        tags = [attributes_of(middle, key[-1]) for _, middle, _ in heads]
        types = unique(word for _, words in tags for word in words)
        key = f"{named[1]}{{ }}"
        rule = NameRule(ends=tuple(unique(end for end, _ in tags)), attribute=named[2])
    else:
        rule = NameRule(ends=tuple(unique(marker(middle) for _, middle, _ in heads)))
    if len(types) > 1:
        raise field.error(f"tag_pattern with the attributes {' and '.join(types)} is not supported")
    kind = types[0] if types else ""
    others = unique((marker(one), marker(last)) for one, _, last in heads[1:])
    return Parameters(
        key=key,
        key_rule=rule,
        close=close,
        trim=trim,
        type_attribute=kind,
        marks_strings=bool(kind) and any("true" in str(piece) for piece in first[1]),
        other_keys=() if named is not None else tuple(pair for pair in others if pair[0] != key),
    )


def tags_of(field: TemplateField) -> list[tuple[Way, Way, Way]]:
    """Return the text before the key, between key and value, and after the value of each spelling of a tag."""
    check_value_parser(field)
    pattern = field.arguments.get("tag_pattern")
    if not isinstance(pattern, str):
        raise field.error("'xml-inline' needs a tag_pattern")
    try:
        ways = ways_of(pattern)
    except FormatError as error:
        raise field.error(f"tag_pattern: {error}") from None
    if not all(groups_of(way) == ["key", "value"] for way in ways):
        raise field.error("tag_pattern must contain the groups 'key' and 'value', in this order, and no others")
    found = []
    for way in ways:
        key, value = way.index(Hole("key")), way.index(Hole("value"))
        found.append((way[:key], way[key + 1 : value], way[value + 1 :]))
    return found


def check_value_parser(field: TemplateField) -> None:
    """Reject a way to parse values other than as text, or as JSON if they are JSON."""
    parser = field.arguments.get("value_parser")
    if parser is None:
        return
    name = parser.get("name") if isinstance(parser, Mapping) else None
    if name not in ("text", "json"):
        raise field.error(f"value_parser {name!r} is not supported: values are typed by the tool's schema")
    given = parser.get("args") if isinstance(parser, Mapping) else None
    if name == "json" and not (isinstance(given, Mapping) and given.get("allow_non_json")):
        raise field.error("value_parser 'json' needs 'allow_non_json', because strings are written without quotes")


def expression_of(field: TemplateField, heads: Sequence[Head]) -> Format | None:
    """Return the format of calls such as `[f(a=1)]` whose arguments are described as tags without markers, or None.

    An opener that begins with a comma separates the calls of a list.
    """
    (key, middle, _) = tags_of(field)[0]
    if marker(key) or marker(middle) != "=" or any(marker(head.after) != "(" for head in heads):
        return None
    openers = unique(marker(head.before) for head in heads)
    array = any(opener.startswith(",") for opener in openers) or all(opener.endswith("[") for opener in openers)
    closes = [re.sub(r"^\)(?:\{\*\})?\]?", "", close) for close in markers(field.closes)]
    kept = unique(opener.removesuffix("[") if array else opener for opener in openers if not opener.startswith(","))
    return Format(
        "",
        openers=tuple(filter(None, kept)),
        variants=(Variant(Expression(array=array, bare=not any(kept))),),
        close=next(iter(filter(None, closes)), ""),
        lines=False,
    )
