"""Parts of a format, and the check that a declaration is unambiguous.

A format is data. It specifies the literals that open and close a call, the position of the name (`NameRule`), and one
of a few ways to write arguments (a body). It contains no functions and no state.

Markers are literal text that may contain placeholders in braces:

    {ns}   an optional XML namespace prefix: `<{ns}invoke` is `<invoke` and `<anything:invoke`
    {:}    an optional suffix: `<tool_call{:}>` is `<tool_call>` and `<tool_call:anything>`
    {_}    optional blanks (space, tab)
    { }    one whitespace character
    {*}    optional whitespace, newlines included
    {n}    the same, written as a line break
    {word} an optional word, such as a name, with optional whitespace on each side
    {'}    an optional quote, single or double
    {=}    an optional name, `=f` or ` name="f"`, which must be that of the element that is closed
    {|}    a vertical bar (plain, full-width or double), or two: `<{|}x{|}>` is `<|x|>`, `<｜x｜>` and `<｜｜x｜｜>`
    {a}    a letter must follow (it is not part of the marker)
    {k}    a letter or a hyphen must follow (it is not part of the marker)
    {key}  in the closer of a value: the key that opened it
    {tool} in the opener and the closer of a call: the name of an offered tool

An opener that begins with a letter is recognized only inside a wrapper or, if the format allows it, at the start of a
line. At the start of a line, letter case is ignored, because models capitalize labels inconsistently.
"""

import itertools
from collections.abc import Mapping
from enum import Enum

from attrs import frozen


class Anchor(Enum):
    """Positions where an opener is recognized."""

    ANYWHERE = "anywhere"
    LINE = "line"
    """At the start of a line; blanks before it are allowed and remain text."""
    REPLY = "reply"
    """Where nothing but whitespace, reasoning or calls precedes the opener in the reply."""


@frozen(cache_hash=True)
class NameRule:
    """Position of a name: either directly after the opener, up to one of `ends`, or in an attribute of the opener's
    tag.
    """

    ends: tuple[str, ...] = (">",)
    """Markers that end the name, after optional whitespace. A marker of the body (`{`, `(`, the opener of a key, the
    closer of the call) also ends the name if it is listed here, and is not consumed.
    """
    attribute: str = ""
    """Attribute that contains the name (`<invoke name="f" k="V">`). The other attributes are arguments, and `ends` end
    the tag.
    """
    id: str = ""
    """Marker before an optional id between the name and its end."""
    id_end: str = ""
    """Marker that ends an id preceding the name."""
    one_line: bool = False
    """Whether the name and its end must be on one line."""
    ignored_words: tuple[str, ...] = ()
    """Words that may precede the name (`@tool f`), and attributes that are not arguments."""
    spelling: str = "{name}"
    """How the name is written, for example `functions.{name}:{index}`; when the name is read, the text around it is
    optional. If the spelling contains `{index}` (the call's number in the reply), the complete spelling is the call's
    id, `!` may replace the `:` before the index, and an index alone is a call to the only offered tool.
    """


@frozen
class JsonBody:
    """Arguments written as one JSON object."""

    text: str = ""
    """Parameter that text other than an object is the value of, if the tool's parameters are unknown; if they are
    known, the text is the value of the only one. If it is "", such text is not accepted.
    """


NAME_KEYS = ("name", "tool", "function", "tool_name", "action", "function_name")
ARGUMENT_KEYS = ("arguments", "parameters", "params", "args", "input", "tool_input", "action_input")
ID_KEYS = ("id", "call_id", "tool_call_id")
ONLY_CALLS_KEYS = ("tool", "function", "tool_name")
SYNONYMS = frozenset(
    (
        *(key.replace("_", "") for key in ARGUMENT_KEYS),
        *("arg", "argument", "argumentlist", "argumentsobject", "argsobject", "callargs", "callarguments"),
        *("functionargs", "functionarguments", "functioninput", "functionparameters", "functionparams", "inputdata"),
        *("inputs", "jsonargs", "jsonarguments", "keywordarguments", "kwargs", "namedarguments", "param", "parameter"),
        *("parametervalues", "payload", "properties", "toolargs", "toolarguments", "toolparameters", "toolparams"),
    )
)
"""Keys, in lower case and without separators, that models use for the arguments object in any envelope. They are
accepted only where they can be nothing else."""
CANONICAL_KEYS = ARGUMENT_KEYS[:2]
"""Keys that can hardly mean anything but the arguments object."""
COMMENT_KEYS = frozenset(("thought", "thoughts", "reason", "reasoning", "rationale", "explanation", "comment"))
"""Keys of comments that models add to the arguments of a call."""


def is_synonym(key: str) -> bool:
    """Return whether models use this key for the arguments object, ignoring case and separators."""
    return key.lower().replace("_", "").replace("-", "").replace(" ", "") in SYNONYMS


@frozen
class Envelope:
    """JSON that contains the name and the arguments: one object, an array of such objects, or one object nested in
    another.

    Calls are written with the first key of `name` and the first key of `arguments`; the other keys are accepted when
    reading. An object under a key in `nest` contains the call.
    """

    name: tuple[str, ...] = NAME_KEYS
    arguments: tuple[str, ...] = ARGUMENT_KEYS
    id: tuple[str, ...] = ID_KEYS
    nest: tuple[str, ...] = ("function", "action", "tool_call", "function_call")
    written_nest: str = ""
    """Key that contains the call when it is written; "" if the call is not nested."""
    calls: str = ""
    """Key whose value is an array of calls."""
    array: bool = False
    """Whether calls are written as an array. When reading, both forms are accepted."""
    as_string: bool = False
    """Whether the arguments are written as a JSON string. When reading, both forms are accepted."""
    keyed: bool = False
    """Whether an object has a single key, the tool name, whose value is the arguments."""
    thought: str = ""
    """Key whose string is reasoning (strict one-object protocol)."""
    final: tuple[str, ...] = ()
    """Path of keys to the visible text (strict one-object protocol)."""
    by_keys: bool = False
    """Whether the format's wrappers may also enclose other objects, so that an object directly inside one is identified
    as a call only by its keys.
    """


@frozen(cache_hash=True)
class Parameters:
    """Marked keys and raw values, typed by the tool's JSON Schema. One JSON object in their place is accepted too."""

    key: str
    """Opener of a key."""
    key_rule: NameRule
    """Position of the key, and the markers that end it; the value follows those markers."""
    close: str
    """Closer of a value."""
    other_keys: tuple[tuple[str, str], ...] = ()
    """Additional key openers that are accepted when reading, each with the closer of its value."""
    foreign_keys: tuple[str, ...] = ()
    """Key openers of another format with the same closers, which models write between parameters. In a value, they are
    text.
    """
    trim: bool = False
    """Whether a newline on each side of a value is markup. The newline before the closer is markup only if there is one
    after the opener.
    """
    wrappers: tuple[tuple[str, str], ...] = ()
    """Opener and closer of each span that may enclose all parameters."""
    type_attribute: str = ""
    """Attribute that gives the type of a value: whether it is a string (`true`, `false`), or a JSON type."""
    marks_strings: bool = False
    """Whether the type attribute is `true` for a string and `false` for another value, whatever its name is."""
    type_marks: tuple[str, ...] = ()
    """Marker that replaces the end of the key if a type follows, and the marker that ends the type
    (`<arg_type>integer</arg_type>`).
    """
    quote: tuple[str, ...] = ()
    """Optional opener and closer around a value, between which no other marker is recognized (CDATA)."""
    escapes: tuple[str, ...] = ()
    """Beginnings of markers that contain a zero-width space, which shows that they are text. It is removed."""
    item: str = ""
    """Key of an array's elements. If set, a value may itself consist of keys and values: it is an array if its elements
    have this key, and an object if they do not.
    """


@frozen(cache_hash=True)
class Expression:
    """Call written as an expression, such as `f(a=1, b='x')`: a name, then bracketed arguments whose values are written
    as in Python or JSON.
    """

    brackets: str = "()"
    """Brackets around the arguments."""
    other_brackets: str = ""
    """Alternative brackets that are accepted when reading."""
    assign: str = "="
    """Separator between a key and its value."""
    flag: str = ""
    """Optional marker before a key. If there is such a marker, blanks follow the key and separate the arguments, and
    values need no quotes.
    """
    quote: str = ""
    """Literal on both sides of a string in which nothing is escaped; "" if strings are in Python quotes."""
    array: bool = False
    """Whether the calls are enclosed in square brackets and separated by commas."""
    bare: bool = False
    """Whether such a list needs no marker if it begins a reply and its first name is that of an offered tool."""


@frozen(cache_hash=True)
class MessageBody:
    """Message whose header determines whether it is reasoning, text, or a call to its recipient."""

    openers: tuple[str, ...]
    begin: str
    """Marker that ends the header and begins the message."""
    recipient: str = ""
    """Prefix of the recipient in the header; if it is "", the entire header is the recipient."""
    channel: str = ""
    """Prefix of the channel in the header."""
    reasoning: tuple[str, ...] = ()
    """Recipients and channels that mark a message as reasoning."""
    text: tuple[str, ...] = ()
    """Recipients that mark a message as text. Any other recipient is a tool, and its message is one JSON object or a
    call in another format.
    """
    written: str = ""
    """Header of a call up to `begin`, containing `{name}`."""
    ends: tuple[str, ...] = ()
    """Markers that may close a message."""
    results: tuple[str, ...] = ()
    """Openers of messages that contain tool results. If a model writes one after its calls, the result is fabricated
    and is discarded.
    """
    parameters: Parameters | None = None
    """Marked parameters that may replace the JSON object."""
    built_in: tuple[str, ...] = ()
    """Beginnings of recipients that the model was trained with. A message to one that is not offered is reasoning."""


Body = JsonBody | Envelope | Parameters | Expression | MessageBody


@frozen
class Variant:
    """One way in which a format continues after its opener.

    `JsonBody` and `Parameters` require a name rule. An `Expression` has a name rule if its name does not directly
    precede its brackets.
    """

    body: Body
    name_rule: NameRule | None = None


@frozen
class Section:
    """Part of a reply whose markers are not text. It contains text if `text` is set, and reasoning if it is not.

    A section can open where nothing but whitespace, reasoning or calls precedes it in the reply; with `Anchor.ANYWHERE`
    (special tokens), it can also open where nothing but whitespace separates it from the end of another such section,
    message or call.
    """

    open: str
    close: str
    text: bool = False
    anchor: Anchor = Anchor.REPLY
    alone: bool = False
    """Whether the section's closer is recognized even after text, because the prompt may have opened the section."""


@frozen(cache_hash=True)
class Format:
    """Textual notation for calls; a row of the table. When writing, the first opener, wrapper and variant are used."""

    name: str
    variants: tuple[Variant, ...]
    openers: tuple[str, ...] = ()
    """Openers of a call; empty if the format has no marker, so that its body appears in the text without one."""
    close: str = ""
    """Closer of the call; skipped if present, never required."""
    closed: bool = True
    """Whether the closer is written. When reading, it is always optional."""
    wrappers: tuple[tuple[str, str], ...] = ()
    """Opener and closer of each optional span around one or more calls, outermost first."""
    anchor: Anchor = Anchor.ANYWHERE
    fence: tuple[str, ...] = ()
    """Info strings of code fences that suffice to announce a call; the first is used in the fence written around each
    call.
    """
    body_fence: str = ""
    """Info string of the code fence that is written around the body, after the opener; "" for none."""
    sections: tuple[Section, ...] = ()
    """Sections of reasoning and text, as marked by the format's models."""
    results: tuple[tuple[str, str], ...] = ()
    """Opener and closer of the result of a call. If a model writes one directly after its call, the result is
    fabricated and is discarded.
    """
    stops: tuple[str, ...] = ()
    """Special tokens that end a turn. They are markup after a call and at the end of a reply."""
    around: str = ""
    """Opener of the wrapper that is written around all calls of a reply."""
    around_each: str = ""
    """Opener of the wrapper that is written around each call."""
    only_calls: bool = False
    """Whether nothing but calls belongs between the format's wrappers, so that other text there is noise."""
    lines: bool = True
    """Whether each part of a call is written on a separate line."""
    bare_openers: tuple[str, ...] = ()
    """Beginnings of names that open a call at the start of a line, in a wrapper, or directly after another call if its
    opener is missing. They are part of the name, and the call is recognized only once the marker after the name has
    been read.
    """
    alias_of: str = ""
    """Format with the same openers that takes precedence if both are enabled."""
    models: str = ""
    """Models that use the format natively, for the docs."""
    about: str = ""
    """Notes on the format, for the docs."""

    @property
    def special(self) -> bool:
        """Whether the format's models put text and reasoning between special tokens, or after headers."""
        return any(section.anchor is Anchor.ANYWHERE for section in self.sections) or any(
            isinstance(variant.body, MessageBody) for variant in self.variants
        )

    @property
    def by_tool(self) -> bool:
        """Whether the format's openers are the names of the offered tools."""
        return any("{tool}" in opener for opener in self.openers)


class FormatError(ValueError):
    """The declaration of a format is ambiguous or impossible. The message names the format and the reason."""


def check_formats(formats: Mapping[str, Format]) -> None:
    """Reject declarations that cannot be read, or that conflict with each other.

    Raises:
        FormatError: a row's key is not its format's name; a format has no variant; a variant does not define the
            position of the name, or defines it twice; calls have no opener and cannot be distinguished from text; two
            formats have the same opener and the same continuation; or an opener begins with another opener.
    """
    seen: dict[tuple[str, str, str], str] = {}
    for key, form in formats.items():
        if key != form.name:
            raise FormatError(f"{key}: the format is named {form.name!r}; use that name as its key")
        if not form.variants:
            raise FormatError(f"{key}: a format needs at least one variant")
        for variant in form.variants:
            named = isinstance(variant.body, JsonBody | Parameters)
            if named and variant.name_rule is None and not form.by_tool:
                raise FormatError(f"{key}: the body does not contain the name; add a name_rule to the variant")
            if not named and not isinstance(variant.body, Expression) and variant.name_rule is not None:
                raise FormatError(f"{key}: the body already contains the name; remove the name_rule from the variant")
            if not openers_of(form, variant) and not form.fence and not needs_no_marker(variant.body):
                raise FormatError(f"{key}: without an opener, its calls cannot be distinguished from text")
            if not form.alias_of:
                register_openers(seen, form, variant)
    openers = sorted({opener for _, opener, _ in seen} | {around for around, _, _ in seen if around})
    for one, other in itertools.pairwise(openers):
        if other.startswith(one):
            raise FormatError(
                f"the opener {other!r} begins with {one!r}, so the match would depend on how the text is split"
            )


def openers_of(form: Format, variant: Variant) -> tuple[str, ...]:
    """Return the openers of one variant of a format."""
    body = variant.body
    return (*body.openers, *body.results) if isinstance(body, MessageBody) else form.openers


def needs_no_marker(body: Body) -> bool:
    """Return whether a body can be distinguished from text without any marker."""
    return isinstance(body, Envelope) or (isinstance(body, Expression) and body.bare)


def continuation_of(variant: Variant) -> str:
    """Describe how a variant continues after its opener, which distinguishes it from other variants."""
    match variant.body:
        case Envelope(array=array):
            return "an array of calls" if array else "an envelope"
        case Expression() if variant.name_rule is None:
            return "an expression"
        case MessageBody():
            return "a header"
        case _:
            return (
                f"a name that {variant.name_rule.ends[0]!r} ends"
                if variant.name_rule and variant.name_rule.ends
                else "a name"
            )


def register_openers(seen: dict[tuple[str, str, str], str], form: Format, variant: Variant) -> None:
    """Register the openers of a variant as belonging to its format.

    Raises:
        FormatError: another format has registered the same opener with the same continuation.
    """
    around = form.around_each or form.around
    for opener in openers_of(form, variant):
        other = seen.setdefault((around, opener, continuation_of(variant)), form.name)
        if other != form.name:
            raise FormatError(
                f"{form.name}: the opener {opener!r} followed by {continuation_of(variant)} already belongs to {other}"
            )
