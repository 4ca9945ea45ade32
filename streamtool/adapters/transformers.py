"""transformers: replaces a tokenizer's `parse_response` with the parser, for every format.

    install(tokenizer)
    message = tokenizer.parse_response(output_ids, prefix=prompt, tools=tools)

transformers describes a format by a template, which is pure data and cannot contain a parser. Therefore, `install`
replaces the method on a single tokenizer; pipelines and scripts that call the method receive the same kind of message
as before. The format that the tokenizer's own template describes is read in addition to the others.
"""

import json
from collections.abc import Iterable
from typing import Any

from statemachine import ArgumentsDelta, CallEnd, CallStart, Parser, ReasoningDelta, TextDelta, tools_of
from statemachine.formats import DEFAULT, FormatError, find_format, rivals_of
from streamtool.models.generation_prompt import last_opener
from streamtool.models.response_templates import read


def install(tokenizer: Any) -> None:
    """Make a tokenizer's `parse_response` use the parser. A response template of the tokenizer that is not supported is
    ignored.
    """
    formats = formats_of(getattr(tokenizer, "response_template", None))

    def parse_response(response: Any, schema: Any = None, *, prefix: Any = None, tools: Any = None) -> Any:  # noqa: ARG001
        replies, alone = decode_texts(tokenizer, response)
        prompts, _ = decode_texts(tokenizer, "" if prefix is None else prefix)
        if len(prompts) <= 1:
            prompts = (prompts or [""]) * len(replies)
        messages = [message(reply, prompt, tools, formats) for reply, prompt in zip(replies, prompts, strict=True)]
        return messages[0] if alone else messages

    tokenizer.parse_response = parse_response
    if getattr(tokenizer, "response_template", None) is None:
        tokenizer.response_template = {}  # pipelines call the method only if the tokenizer has one


def formats_of(template: Any) -> tuple[str, ...] | None:
    """Return the formats to read for a tokenizer with this response template; None: the parser's default."""
    try:
        own = read(template).format
    except FormatError:
        return None
    rivals = rivals_of(find_format(own))
    return (*(name for name in DEFAULT if name not in rivals and name != own), own)


def decode_texts(tokenizer: Any, given: Any) -> tuple[list[str], bool]:
    """Return a list of strings, decoded if necessary, and whether `given` is a single reply rather than a batch."""
    if isinstance(given, str):
        return [given], True
    if isinstance(given, list | tuple) and (not given or isinstance(given[0], str)):
        return list(given), False
    decoded = tokenizer.decode(given)
    return ([decoded], True) if isinstance(decoded, str) else (list(decoded), False)


def message(
    reply: str, prompt: str, tools: Iterable[Any] | None, formats: Iterable[str] | None = None
) -> dict[str, Any]:
    """Convert a reply to a transformers message: `role`, and `content`, `thinking` and `tool_calls` if present.

    The arguments of a call are an object. If the call was cut off, they are the text received so far.
    """
    parser = Parser(tools_of(tools), formats=formats, prefix=last_opener(prompt))
    found: dict[str, Any] = {"role": "assistant"}
    arguments: list[str] = []
    for event in [*parser.feed(reply), *parser.close()]:
        match event:
            case TextDelta(text=text):
                found["content"] = found.get("content", "") + text
            case ReasoningDelta(text=text):
                found["thinking"] = found.get("thinking", "") + text
            case CallStart(name=name):
                arguments.clear()
                found.setdefault("tool_calls", []).append({"type": "function", "function": {"name": name}})
            case ArgumentsDelta(text=text):
                arguments.append(text)
            case CallEnd(complete=complete):
                text = "".join(arguments)
                found["tool_calls"][-1]["function"]["arguments"] = json.loads(text) if complete else text
            case _:
                pass
    return found
