"""A made-up model that follows some formats more often than others, to be found by `streamtool eval`."""

import json
import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from support.right_replies import right_replies

from statemachine import Call, parse, write
from streamtool.core.json_value import Json
from streamtool.evaluation import baseline
from streamtool.evaluation.scenario import MadeCall, Scenario, suite
from streamtool.evaluation.variants import FORMATS
from streamtool.prompting import tool_prompt as words
from streamtool.testing import Script, text

ASKED = {part.text: scenario for scenario in suite() for part in scenario.messages[-1].content}
"""Last message of each scenario → the scenario."""

NAIVE = baseline.PROMPT.partition("\n")[0]
"""First line of the baseline's prompt."""


@cache
def taught_format(prompt: str) -> str:
    """Return the format that the tool prompt in a system message teaches, or "" for a message without one."""
    if prompt.startswith(NAIVE):
        return "tool_call"
    example = prompt.rpartition(words.EXAMPLE_HEADING)[2].partition(words.YOU_WRITE)[2]
    call = example.partition(words.NEXT_MESSAGE)[0].strip("\n")
    if not call:
        return ""
    for name in FORMATS:
        _, calls = parse(call, formats=[name])
        if len(calls) == 1 and write(calls, name) == call:
            return name
    return "tag"  # whose markers are the names of tools


def shares_of(seed: int) -> dict[str, float]:
    """Return the share of right replies in each format: 90 % in one, and 20 to 60 % in the others. Native calls are
    never made.
    """
    chance = random.Random(seed)
    shares = {name: chance.uniform(0.2, 0.6) for name in FORMATS}
    return {**shares, "": 0.5, chance.choice(FORMATS): 0.9}


def best_of(shares: Mapping[str, float]) -> str:
    return max(shares, key=lambda name: shares[name])


class MadeUpModel:
    """ASGI app for Chat Completions. Each scenario is always answered in the same way in one format.

    `prompts` contains the messages of each request, `paths` the path of each. `version` is what the server reports, like
    vLLM; None: it does not respond to that request.
    """

    def __init__(self, seed: int = 1, version: str | None = "1.0") -> None:
        self.shares = shares_of(seed)
        self.version = version
        self.models = ["made-up"]
        self.prompts: list[Sequence[Json]] = []
        self.paths: list[str] = []
        self._seed = seed

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.paths.append(scope["path"])
        match scope["path"]:
            case "/v1/chat/completions":
                request = json.loads(body)
                self.prompts.append(request["messages"])
                script = text(self.reply(request["messages"]))
            case "/v1/models":
                script = _document({"object": "list", "data": [{"id": name} for name in self.models]})
            case "/version" if self.version is None:
                await receive()  # until the client disconnects
                return
            case "/version":
                script = _document({"version": self.version})
            case _:
                script = _document({"error": {"message": "unknown path"}}, 404)
        headers = [(b"content-type", script.content_type.encode())]
        await send({"type": "http.response.start", "status": script.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"".join(filter(None, script.steps))})

    def reply(self, messages: Sequence[Json]) -> str:
        """Return the reply to the last message."""
        format = next((found for message in messages if (found := taught_format(_text(message)))), "")
        at, scenario = _asked(messages)
        if scenario is None:
            return "pong"
        follows = random.Random(f"{self._seed} {format} {scenario.name}").random() < self.shares[format]
        replies = right_replies(scenario)
        step = sum(message["role"] == "assistant" for message in messages[at:])
        calls, answer = replies[min(step, len(replies) - 1)] if follows else _wrong(scenario)
        if not calls or not format:
            return answer or "Here is a poem."
        return write([Call(call.name, call.arguments) for call in calls], format)


def _document(value: Json, status: int = 200) -> Script:
    return Script((json.dumps(value).encode(),), status, "application/json")


def _text(message: Json) -> str:
    content = message["content"] or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def _asked(messages: Sequence[Json]) -> tuple[int, Scenario | None]:
    """Return the position of the latest message of a scenario, and the scenario."""
    for at in reversed(range(len(messages))):
        if messages[at]["role"] == "user":
            found = [ask for ask in ASKED if ask in _text(messages[at])]
            if found:
                return at, ASKED[max(found, key=len)]
    return 0, None


def _wrong(scenario: Scenario) -> tuple[list[MadeCall], str]:
    if scenario.steps or scenario.answer or scenario.form or not scenario.tools:
        return [], "Here is a poem."
    return [MadeCall(scenario.tools[-1].name, "{}")], ""
