"""The sample model: a function that maps a prompt to a reply."""

import itertools
import json
import re
from collections.abc import Mapping, Sequence

from statemachine import Call, write
from streamtool.core.json_value import Json
from streamtool.prompting import tool_prompt as words
from streamtool.sample.lesson import Lesson, OfferedTool, SampleParameter, learn

_TURN_INSTRUCTIONS = re.compile(r"For this reply: .*", re.DOTALL)


def reply(messages: Sequence[Mapping[str, Json]]) -> str:
    """Return the model's complete reply to the prompt messages (`role`, `content`). Never raises for messages from a
    client.
    """
    turns = [(str(message.get("role")), content_text(message.get("content"))) for message in messages]
    taught = next((text for _, text in turns if words.LIST_HEADING in text and words.EXAMPLE_HEADING in text), "")
    lesson = learn(taught)
    last = turns[-1][1].rpartition(words.END)[2].strip() if turns else ""
    tail = _TURN_INSTRUCTIONS.search(last)
    said = last[: tail.start()].strip() if tail else last
    rule = tail[0] if tail else ""
    if lesson is None:
        return f"You said: {said}"
    if "write no call" in rule:
        return lesson.final(f"Without tools I can only say: {said}")
    called = any(role == "assistant" for role, _ in turns)
    results = [found.strip("\n") for found in lesson.result.findall(said)] if called else []
    if results and not re.search(r"write (at least |exactly )?one call", rule):
        return lesson.final(f"Here is what I found: {' | '.join(results)}")
    calls = [Call(offer.name, _arguments(offer, said)) for offer in _choose_tools(lesson, said, rule)]
    if not calls:
        return lesson.final(f"You said: {said}")
    text = write(calls, lesson.format)
    return f"Let me look that up.\n{text}" if lesson.allows_text else text


def content_text(content: Json) -> str:
    """Return the text of a message's `content`."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return str(content or "")


def _choose_tools(lesson: Lesson, said: str, rule: str) -> Sequence[OfferedTool]:
    """Return the tools to call now: the tools that the user names, or the first one if the user names none. Return two
    tools if the user names more than one or writes "both" or "and"; if not, return one.
    """
    allowed = set(re.findall(r"`([^`]*)`", rule))
    offers = [offer for offer in lesson.offers if not allowed or offer.name in allowed]
    lowered = said.lower()
    named = sorted((o for o in offers if o.name.lower() in lowered), key=lambda o: lowered.index(o.name.lower()))
    count = 2 if len(named) > 1 or re.search(r"\b(both|and)\b", lowered) else 1
    if lesson.single or "exactly one" in rule:
        count = 1
    return [*named, *(offer for offer in offers if offer not in named)][:count]


def _arguments(offer: OfferedTool, said: str) -> str:
    """Return the arguments of a call, as JSON: the required parameters, filled with the user's words."""
    return json.dumps(_fill(offer.parameters, _UserWords(said)), ensure_ascii=False)


class _UserWords:
    """The user's words and numbers, the most specific words first. They are returned in turn, in an endless cycle."""

    def __init__(self, said: str) -> None:
        quoted: list[str] = re.findall(r"[\"“'‘]([^\"”'’\n]{1,80})[\"”'’]", said)
        found: list[str] = re.findall(r"[^\W\d_]{2,}", said)
        proper = [word for word in found[1:] if word[0].isupper()]
        self._texts = itertools.cycle([*quoted, *proper] or found[-1:] or ["sample"])
        self._numbers = itertools.cycle([int(number) for number in re.findall(r"\b\d{1,9}\b", said)] or [1])

    def text(self) -> str:
        return next(self._texts)

    def number(self) -> int:
        return next(self._numbers)


def _fill(parameters: Sequence[SampleParameter], said: _UserWords) -> dict[str, Json]:
    chosen = [parameter for parameter in parameters if parameter.required] or parameters[:1]
    return {p.name: _value(p.type, said) if p.default is None else p.default for p in chosen}


def _value(kind: Json, said: _UserWords) -> Json:
    match kind:
        case ("literal", value):
            return value
        case ("array", item):
            return [_value(item, said)]
        case ("object", parameters):
            return _fill(parameters, said)
        case ("word", "integer" | "number"):
            return said.number()
        case ("word", "boolean"):
            return True
        case ("word", "object"):
            return {}
        case ("word", "null"):
            return None
        case _:
            return said.text()
