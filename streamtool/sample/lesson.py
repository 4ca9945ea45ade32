"""The lesson that the sample model learns from a tool prompt: the tools, the call format and the result frame."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from attrs import define, frozen

from statemachine import FORMATS, parse, write
from statemachine.formats import Anchor
from streamtool.core.json_value import Json
from streamtool.prompting import tool_prompt as words
from streamtool.schemas import parameters as schema


@frozen
class SampleParameter:
    """A parameter, as listed in the tool prompt."""

    name: str
    type: Json
    """("literal", value) · ("array", type) · ("object", parameters) · ("word", name)"""
    required: bool = True
    default: Json = None


@frozen
class OfferedTool:
    """A tool, as listed in the tool prompt."""

    name: str
    parameters: tuple[SampleParameter, ...] = ()


@frozen
class Lesson:
    """The contents of a tool prompt, as far as the sample uses them."""

    offers: tuple[OfferedTool, ...]
    format: str
    result: "re.Pattern[str]"
    """Matches a framed result; group 1 is the result's content."""
    answer: str
    """Example of a final answer."""
    single: bool
    """Whether a reply may contain only one call."""

    def final(self, text: str) -> str:
        """Return a final answer with this text, in the form of the example."""
        if self.answer == words.EXAMPLE_ANSWER:
            return text
        return self.answer.replace(json.dumps(words.EXAMPLE_ANSWER), json.dumps(text, ensure_ascii=False))

    @property
    def allows_text(self) -> bool:
        """Whether text may accompany calls."""
        return self.answer == words.EXAMPLE_ANSWER and FORMATS[self.format].anchor is not Anchor.REPLY


@define(eq=False)
class _Signature:
    """Reader for types and parameters in the notation of the tool prompt: `a: string, b?: integer = 3, c: "x"|"y"`."""

    text: str
    at: int = 0

    def skip(self, word: str) -> bool:
        found = self.text.startswith(word, self.at)
        self.at += len(word) if found else 0
        return found

    def value(self) -> Json:
        found, self.at = json.JSONDecoder().raw_decode(self.text, self.at)
        return found

    def word(self) -> str:
        if self.text.startswith('"', self.at):
            return str(self.value())
        found = re.compile(r"[\w$.-]+|\[key\]").match(self.text, self.at)
        if found is None:
            raise ValueError(self.text[self.at :])
        self.at = found.end()
        return found[0]

    def parameters(self, closer: str) -> tuple[SampleParameter, ...]:
        read = []
        while not self.skip(closer):
            read.append(self.parameter())
            self.skip(", ")
        return tuple(parameter for parameter in read if parameter.name != "[key]")

    def parameter(self) -> SampleParameter:
        name, optional = self.word(), self.skip("?")
        if not self.skip(": "):
            raise ValueError(self.text[self.at :])
        kind = self.type()
        return SampleParameter(name, kind, not optional, self.value() if self.skip(" = ") else None)

    def type(self) -> Json:
        """Return the first alternative other than null."""
        kinds = [self.single()]
        while self.skip("|"):
            kinds.append(self.single())
        return next((kind for kind in kinds if kind not in (("literal", None), ("word", "null"))), kinds[0])

    def single(self) -> Json:
        kind: Json
        if self.skip("("):
            kind = self.type()
            self.skip(")")
        elif self.skip("{"):
            kind = ("object", self.parameters("}"))
        else:
            try:
                kind = ("literal", self.value())
            except ValueError:
                kind = ("word", self.word())
        while self.skip("[]"):
            kind = ("array", kind)
        return kind


def read_offers(listed: str) -> tuple[OfferedTool, ...]:
    """Return the tools in the tool prompt's list, whichever style it uses."""
    lines = listed.split("\n")
    if any(line.startswith("**") for line in lines):
        return tuple(_markdown_offers(lines))
    offers = {offer.name: offer for offer in _signature_offers(lines)}  # the last one lists its parameters
    return tuple(offers.values())


def _signature_offers(lines: Sequence[str]) -> Iterator[OfferedTool]:
    name, parameters = "", list[SampleParameter]()
    for line in lines:
        if name and line == ")":
            yield OfferedTool(name, tuple(parameters))
            name, parameters = "", []
        elif name:  # one line per parameter; its description follows the signature
            parameters.append(_Signature(line, 1).parameter())
        elif opened := re.fullmatch(r"(\S+)\(", line):
            name = opened[1]
        elif line.startswith('{"name"'):
            entry = json.loads(line)
            yield _signature_offer(schema.signature(entry["name"], entry["parameters"]))
        elif line and not line.startswith(" ") and re.match(r"\S+?\(|\S+?(?:: .*)?\Z", line):
            yield _signature_offer(line)


def _signature_offer(line: str) -> OfferedTool:
    """Return the tool in a line such as `f(a: string)`, or `f: description` if parameters are not listed."""
    name, opened, _ = line.partition("(")
    if not opened or " " in name:
        return OfferedTool(line.partition(": ")[0])
    return OfferedTool(name, _Signature(line, len(name) + 1).parameters(")"))


def _markdown_offers(lines: Sequence[str]) -> Iterator[OfferedTool]:
    name, listing = "", False
    parameters: list[SampleParameter] = []
    for line in lines:
        if line.startswith("**") and line.endswith("**"):
            if name:
                yield OfferedTool(name, tuple(parameters))
            name, listing, parameters = line[2:-2], False, []
        elif not line.startswith("  "):
            listing = line == "Parameters:"
        elif listing and (parameter := _markdown_parameter(line)):
            parameters.append(parameter)
    yield OfferedTool(name, tuple(parameters))


def _markdown_parameter(line: str) -> SampleParameter | None:
    reader = _Signature(line, 4)
    try:
        name = reader.word()
        kind = reader.type() if reader.skip(" (") else None
    except ValueError:
        return None
    if kind is None or not reader.skip(") ("):
        return None
    return SampleParameter(name, kind, reader.skip("required"))


def _between(text: str, opener: str, closer: str) -> str:
    return text.partition(opener)[2].partition(closer)[0].strip("\n")


@lru_cache(maxsize=16)
def learn(prompt: str) -> Lesson | None:
    """Return the lesson of the tool prompt in this text; None if the text contains no readable tool prompt."""
    if words.LIST_HEADING not in prompt or words.EXAMPLE_HEADING not in prompt:
        return None
    before, _, example = prompt.partition(words.END)[0].rpartition(f"\n{words.EXAMPLE_HEADING}\n")
    listed = before.rpartition(f"\n{words.LIST_HEADING}\n")[2]
    try:
        offers = read_offers(listed)
    except (ValueError, KeyError, RecursionError):  # the headings belong to other text
        return None
    first = _between(example, words.YOU_WRITE, words.NEXT_MESSAGE)
    answer = _between(example, words.ANSWER, words.SEVERAL)
    frame = _between(example, words.NEXT_MESSAGE, words.ANSWER)
    return Lesson(
        offers,
        _format_of(first, [offer.name for offer in offers]),
        _frame_of(frame, offers),
        answer,
        words.SEVERAL not in example,
    )


def _format_of(example: str, names: Sequence[str]) -> str:
    """Return the format that reproduces the example exactly when the example's call is written in it, or `tool_call` if
    no format does.
    """
    together = [name for name, form in FORMATS.items() if not form.by_tool]  # compiled once for all tools
    for formats in (together, *([name] for name in FORMATS)):
        _, calls = parse(example, names, formats=formats)
        for name in formats if len(calls) == 1 else ():
            if write(calls, name) == example:
                return name
    return "tool_call"


def _frame_of(example: str, offers: Sequence[OfferedTool]) -> "re.Pattern[str]":
    pattern = re.escape(example)
    for offer in offers:
        content = re.escape(words.example_result(offer.name))
        if content in pattern:
            before, after = pattern.split(content, 1)
            before = before.replace(re.escape(offer.name), r"[^\n]*?").replace(words.EXAMPLE_ID, r"[^\n]*?")
            return re.compile(before + "(.*?)" + (after or r"(?=\n\n|\Z)"), re.DOTALL)
    return re.compile(r"(.*)", re.DOTALL)
