"""transformers: a tokenizer's `parse_response` with the parser behind it, for every format.

    install(tokenizer)
    message = tokenizer.parse_response(output_ids, prefix=prompt, tools=tools)

transformers describes a format by a template, which is data and has no place for a parser. So the method is replaced on
this one tokenizer; pipelines and scripts that ask it receive the same kind of message.
"""

import json
from collections.abc import Iterable
from typing import Any

from statemachine import ArgumentsDelta, CallEnd, CallStart, Parser, ReasoningDelta, TextDelta, tools_of
from streamtool.generation_prompt import last_opener


def install(tokenizer: Any) -> None:
    """Have a tokenizer parse replies with the parser. A template of its own is no longer read."""

    def parse_response(response: Any, schema: Any = None, *, prefix: Any = None, tools: Any = None) -> Any:  # noqa: ARG001
        replies, alone = texts(tokenizer, response)
        prompts, _ = texts(tokenizer, "" if prefix is None else prefix)
        if len(prompts) <= 1:
            prompts = (prompts or [""]) * len(replies)
        messages = [message(reply, prompt, tools) for reply, prompt in zip(replies, prompts, strict=True)]
        return messages[0] if alone else messages

    tokenizer.parse_response = parse_response
    if getattr(tokenizer, "response_template", None) is None:
        tokenizer.response_template = {}  # pipelines ask only a tokenizer that has one


def texts(tokenizer: Any, given: Any) -> tuple[list[str], bool]:
    """Texts, or what they are decoded from; and whether it is one, not a batch."""
    if isinstance(given, str):
        return [given], True
    if isinstance(given, list | tuple) and (not given or isinstance(given[0], str)):
        return list(given), False
    decoded = tokenizer.decode(given)
    return ([decoded], True) if isinstance(decoded, str) else (list(decoded), False)


def message(reply: str, prompt: str, tools: Iterable[Any] | None) -> dict[str, Any]:
    """A reply as transformers has it: `role`, and `content`, `thinking` and `tool_calls` where there are any.

    The arguments of a call are an object; of a call that was cut they are the text that came.
    """
    parser = Parser(tools_of(tools), prefix=last_opener(prompt))
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
