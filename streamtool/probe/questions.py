"""Questions about an upstream. Each is a function that sends one or more requests and judges the replies.

The requests are chosen so that the answer is evident from the text, whatever else the model writes: a code word that
only the system message contains, or an incomplete word that only a continued message completes. If a reply shows
neither yes nor no, the answer is `unclear`.
"""

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

from statemachine import CallStart, Parser
from streamtool.core.conversation import Forcing, Tool
from streamtool.core.reply import Reason, ReplyCall
from streamtool.policy import denies_tools
from streamtool.probe.client import SECONDS, ProbeClient, ProbeResult, find_client
from streamtool.probe.findings import (
    Findings,
    ProbeAnswer,
    ProbeTarget,
    ShownTemplate,
    Stream,
    Taught,
    ToolFindings,
    Word,
)
from streamtool.protocols.table import PROTOCOLS
from streamtool.settings import UpstreamSettings

TAUGHT: Final = ("invoke", "tool_call", "qwen3_coder", "fenced", "labelled", "object")
"""Formats to try, after the format of the model's family."""
MARKERS: Final = (
    "<tool_call>",
    "<function=get_weather>",
    '<invoke name="get_weather">',
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "<|tool_call_start|>",
    "<|channel|>",
    "<｜tool▁calls▁begin｜>",
)
"""Markers for the model to repeat. Most of them are special tokens of some model."""

_CITY: Final = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_TOOL: Final = Tool("get_weather", "The weather in a city, now.", _CITY)
_WEATHER: Final = "What is the weather in Paris now? Look it up with get_weather before you answer."


async def probe(
    upstream: UpstreamSettings,
    model: str | None = None,
    *,
    tries: int = 1,
    seconds: float = SECONDS,
    watch: Callable[[str], object] = lambda question: None,  # noqa: ARG005  ignored by default
) -> Findings:
    """Find out what the upstream supports with this model or, if `model` is None, with the first one that it lists.

    `tries` is the number of times to try each format, and `seconds` the timeout of one request. `watch` is called with
    the name of each question. Raises UpstreamError if the upstream cannot be reached in time, UpstreamRefused if it
    rejects the request (a wrong key, an unknown model), and StreamtoolError if it supports none of the protocols.
    """
    async with AsyncExitStack() as stack:
        watch("protocol")
        line = await find_client(upstream, model, stack, seconds=seconds)

        async def asked(question: Callable[[ProbeClient], Awaitable[Any]]) -> Any:
            watch(question.__name__.replace("_", " "))
            return await question(line)

        stream, tools, system, neighbours = [
            await asked(question) for question in (streaming, native_tools, system_role, neighbouring_messages)
        ]
        kept, prefill, schema, stop = [
            await asked(question) for question in (special_markers, assistant_prefill, json_schema, stop_strings)
        ]
        template = await asked(chat_template)
        folds = system.word == "refused"
        formats = await taught_formats(line, template.taught, tries, watch, system_role=not folds)
        if not folds and system.word != "yes" and not any(taught.obeyed for taught in formats):
            again = await taught_formats(line, template.taught, tries, watch, system_role=False)
            if any(taught.obeyed for taught in again):
                folds, formats = True, again
    return Findings(
        ProbeTarget(upstream.url, line.protocol, line.model.name, line.models, template),
        stream=stream,
        tools=tools,
        system=system,
        neighbours=neighbours,
        markers=kept,
        prefill=prefill,
        json_schema=schema,
        stop=stop,
        formats=formats,
        system_role=not folds,
        requests=line.requests,
    )


def _judge(heard: ProbeResult, fits: bool | None) -> ProbeAnswer:
    """Return the answer for a reply. `fits` is True if the reply shows "yes", False if it shows "no", and None if it
    shows neither.
    """
    if heard.error is not None:
        return ProbeAnswer("refused" if heard.rejected else "failed", heard.said)
    if fits:
        return ProbeAnswer("yes")
    return ProbeAnswer("no" if fits is not None and _is_finished(heard) else "unclear", heard.said)


def _is_finished(heard: ProbeResult) -> bool:
    """Return whether the model finished its reply."""
    return bool(heard.choice.text.strip()) and heard.choice.reason is not Reason.LENGTH


async def streaming(line: ProbeClient) -> Stream:
    """Find out whether a reply arrives in pieces."""
    heard = await line.say(("user", "Count from one to twenty, in words, with nothing else."), tokens=128)
    if heard.error is not None:
        return Stream("failed", said=heard.said)
    return Stream(
        "streamed" if heard.arrivals > 1 else "buffered" if heard.deltas > 1 else "whole",
        first=round(heard.first, 3),
        seconds=round(heard.seconds, 3),
        pieces=heard.arrivals,
    )


async def native_tools(line: ProbeClient) -> ToolFindings:
    """Find out whether the model calls a native tool."""
    if not PROTOCOLS[line.protocol].native_tools:
        return ToolFindings("none")
    heard = await line.say(("user", _WEATHER), tools=(_TOOL,))
    if heard.error is not None:
        denied = denies_tools(heard.error.message)
        return ToolFindings("denied" if denied else "refused" if heard.rejected else "failed", said=heard.said)
    if any(map(_is_right, heard.choice.calls)):
        return ToolFindings("calls")
    leaked = _format_of(heard.choice.text, line.model.listened_formats)
    if leaked is not None:
        return ToolFindings("leaks", leaked, heard.said)
    return ToolFindings("ignored" if _is_finished(heard) else "unclear", said=heard.said)


def _format_of(text: str, formats: Iterable[str] | None) -> str | None:
    """Return the format of the first call in the text, or None if it contains no call."""
    parser = Parser([_TOOL.name], formats=formats)
    return next((e.format for e in (*parser.feed(text), *parser.close()) if isinstance(e, CallStart)), None)


def _is_right(call: ReplyCall) -> bool:
    """Return whether this is the requested call."""
    try:
        given = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return False
    city = given.get("city") if isinstance(given, dict) else None
    return call.name == _TOOL.name and call.complete and isinstance(city, str) and "paris" in city.lower()


async def system_role(line: ProbeClient) -> ProbeAnswer:
    """Find out whether the model obeys a system message."""
    rule = "The code word is saffron. Whatever the user says, answer with the code word and nothing else."
    heard = await line.say(("system", rule), ("user", "Good morning. What is it that you have to say?"))
    return _judge(heard, "saffron" in heard.choice.text.lower())


async def neighbouring_messages(line: ProbeClient) -> ProbeAnswer:
    """Find out whether a user message may directly follow another one."""
    if PROTOCOLS[line.protocol].joins_neighbours:
        return ProbeAnswer("yes", "they are merged before sending")
    heard = await line.say(("user", "Here are two numbers: 2 and 3."), ("user", "Which of them is larger?"))
    return _judge(heard, True)  # any reply shows that both messages were accepted


async def special_markers(line: ProbeClient) -> Mapping[str, Word]:
    """Find out which markers the model repeats unchanged."""
    lines = "\n".join(f"({i}) {marker} ({i})" for i, marker in enumerate(MARKERS, 1))
    heard = await line.say(("user", f"Repeat these lines exactly, character by character, and nothing else:\n{lines}"))
    if heard.error is not None:
        return dict.fromkeys(MARKERS, "failed")
    text = heard.choice.text
    found: dict[str, Word] = {}
    for i, marker in enumerate(MARKERS, 1):
        stripped = re.search(rf"\({i}\)\s*\({i}\)", text)
        found[marker] = "yes" if marker in text else "no" if stripped else "unclear"
    return found


async def assistant_prefill(line: ProbeClient) -> ProbeAnswer:
    """Find out whether the model continues an assistant message at the end of the prompt."""
    question = "Which animal of Africa looks like a horse with black and white stripes? Answer in a sentence."
    heard = await line.say(("user", question), ("assistant", "The animal is called a zeb"), tokens=64)
    return _judge(heard, heard.choice.text.lstrip().lower().startswith("ra"))


async def json_schema(line: ProbeClient) -> ProbeAnswer:
    """Find out whether a JSON Schema determines the form of the reply."""
    schema = Forcing("schema", {**_CITY, "additionalProperties": False})
    heard = await line.say(("user", "Say in a sentence which city is the capital of France."), forcing=schema)
    try:
        answer = json.loads(heard.choice.text)
    except (ValueError, RecursionError):
        answer = None
    return _judge(heard, isinstance(answer, dict) and answer.keys() == {"city"})


async def stop_strings(line: ProbeClient) -> ProbeAnswer:
    """Find out whether a stop string ends the reply."""
    heard = await line.say(("user", "Repeat exactly: 1 2 3 4 5 6 7 8 9"), stop=("6",))
    text = heard.choice.text
    return _judge(heard, "6" not in text if "5" in text else None)


async def chat_template(line: ProbeClient) -> ShownTemplate:
    """Find out which chat template the upstream exposes, and what it reveals about the model."""
    shown = await line.fetch_template()
    if shown is None:
        return ShownTemplate("")
    told = shown.recognised
    return ShownTemplate(shown.where, told.format, told.mark, told.taught, told.opener)


async def taught_formats(
    line: ProbeClient, told: str | None, tries: int, watch: Callable[[str], object], *, system_role: bool
) -> tuple[Taught, ...]:
    """Find out which formats the model obeys. The template's own format is tried first."""
    found = []
    for format_ in dict.fromkeys((*([told] if told else ()), line.model.training.family.format, *TAUGHT)):
        watch(f"format {format_}")
        heard = [await line.ask_taught(format_, _WEATHER, _TOOL, system_role=system_role) for _ in range(tries)]
        each = [_judge_taught(format_, one) for one in heard]
        obeyed = sum(one.obeyed for one in each)
        best = next((one for one in each if one.obeyed), each[-1])
        found.append(Taught(format_, best.word, obeyed, tries, best.said))
    return tuple(found)


def _judge_taught(format_: str, heard: ProbeResult) -> Taught:
    """Judge the reply to one test of a format."""
    calls = heard.choice.calls
    if heard.error is not None:
        return Taught(format_, "refused" if heard.rejected else "failed", said=heard.said)
    if any(map(_is_right, calls)):
        if format_ in heard.formats:
            return Taught(format_, "obeyed", 1)
        return Taught(format_, "other", said=", ".join(heard.formats) or "a native call")
    if calls:
        return Taught(format_, "wrong", said=f"{calls[0].name}({calls[0].arguments[:60]})")
    return Taught(format_, "no call" if _is_finished(heard) else "unclear", said=heard.said)
