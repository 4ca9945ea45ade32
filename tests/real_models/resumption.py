"""Measurement of continued replies with a real model on llama.cpp's server, at temperature 0.

    PYTHONPATH=.:tests python tests/real_models/resumption.py [--model NAME] [--places N] [--restarted]

For each kind of reply, the connection breaks at N random tokens. The table shows how many continued replies equal
the undisturbed one, and how many of the others have valid calls. For replies without a constraint, the last column
counts the equal replies of the server itself, to the same prompt and the text so far.

Unless `--restarted` is given, the server still has the text so far in its cache. A server without it computes the text
in one batch, whose rounding differs from that of single tokens.
"""

import argparse
import json
import random
from collections.abc import Iterator
from typing import Any

import anyio
import httpx
import jsonschema_rs
from attrs import define, frozen
from support.continuing import engine_of
from support.dialects import Ask, Got, read, write
from support.engine import START, Engine, served
from support.real_models import gemma, smollm2

from streamtool.core.errors import UpstreamError
from streamtool.middleware import ToolMiddleware
from streamtool.settings import Settings
from streamtool.testing import stream_asgi
from streamtool.upstream.app import HttpUpstream

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
}
TOOL = ("get_weather", "Get the weather in a city.", SCHEMA)
TEXT = Ask((("user", "Explain in detail how a bicycle works and list its parts with numbers."),), (TOOL,))
CALL = Ask((("user", "What is the weather in Oslo?"),), (TOOL,), choice="get_weather")
MODELS = {"smollm2": smollm2, "gemma": gemma}
LIMIT = 120
"""Tokens of a reply; the calls are shorter."""


@frozen
class Kind:
    """A kind of reply."""

    name: str
    ask: Ask
    protocol: str
    forcing: str

    def __str__(self) -> str:
        return f"{self.protocol}, {self.name}, {self.forcing}"


KINDS = [
    Kind(name, ask, protocol, forcing)
    for protocol in ("chat", "completions")
    for name, ask, forcing in (
        ("text", TEXT, "auto"),
        ("call", CALL, "prefill"),
        ("call", CALL, "grammar"),
        ("call", CALL, "schema"),
    )
    if (protocol, forcing) != ("completions", "schema")  # llama.cpp ignores the schema there
]


@define
class Figures:
    """The counts for one kind of reply."""

    places: int = 0
    equal: int = 0
    valid: int = 0
    """The replies that differ, but whose calls are valid."""
    bound: int | None = None
    """The replies of the server itself that are equal; None if there is a constraint."""


async def reply(engine: Engine, kind: Kind, dies: int | None, *, cached: bool) -> tuple[Got, dict[str, Any], int]:
    """Return the client's view of a reply whose connection breaks after this many deltas, the upstream's first request,
    and the number of requests.
    """
    table = {"url": engine.url, "protocol": kind.protocol, "forcing": kind.forcing}
    settings = Settings(upstreams={"u": table}, refusals="pass")
    bodies: list[bytes] = []
    async with HttpUpstream(settings.upstreams["u"]) as http:

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen, first = 0, not bodies

            async def observed() -> Any:
                message = await receive()
                bodies.append(message.get("body", b""))
                return message

            async def broken(message: Any) -> None:
                nonlocal seen
                body = message.get("body", b"")
                seen += body.count(b"\ndata:") + body.startswith(b"data:")
                if first and dies is not None and seen > dies:
                    raise UpstreamError("the connection broke")
                await send(message)

            await http(scope, observed, broken)

        middleware = ToolMiddleware(app, settings=settings)
        middleware.templates.engines.note("u", engine_of("llama.cpp"))
        request = write("chat", kind.ask) | {"temperature": 0, "max_tokens": LIMIT, "cache_prompt": cached}
        async with stream_asgi(middleware, body=json.dumps(request).encode()) as stream:
            got = read("chat", await stream.body(), stream=True)
    return got, json.loads(bodies[0]), len(bodies)


def is_valid(got: Got) -> bool:
    """Return whether the reply ended well, and its calls match the schema."""
    calls = [arguments for part in got.parts if not isinstance(part, str) for _, arguments in [part]]
    check = jsonschema_rs.validator_for(SCHEMA)
    return got.error is None and (got.reason == "length" or all(check.is_valid(json.loads(one)) for one in calls))


def pieces(engine: Engine, prompt: str, most: int, *, cached: bool) -> list[str]:
    """Return the pieces of the server's own continuation of a prompt."""
    body = {"prompt": prompt, "n_predict": most, "temperature": 0, "cache_prompt": cached, "stream": True}
    with httpx.stream(
        "POST", f"{engine.url}/completion", json=body, timeout=START, trust_env=False, headers={"connection": "close"}
    ) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: {")]
    return [text for line in lines if (text := json.loads(line[6:])["content"])]


def prompt_of(engine: Engine, sent: dict[str, Any]) -> str:
    """Return the prompt of a request, including the beginning of the reply."""
    if "prompt" in sent:
        return str(sent["prompt"])
    *messages, last = sent["messages"]
    begun = last["role"] == "assistant"
    request = {"messages": messages if begun else sent["messages"]}
    answer = httpx.post(f"{engine.url}/apply-template", json=request, timeout=START, trust_env=False)
    return str(answer.json()["prompt"]) + (last["content"] if begun else "")


async def measure(engine: Engine, kind: Kind, places: int, *, cached: bool = True, bound: bool = True) -> Figures:
    """Break the connection at random places, and count the replies that are equal to the undisturbed one."""
    figures, chance = Figures(), random.Random(str(kind))
    await reply(engine, kind, None, cached=cached)  # the prompt is in the cache from now on
    expected, sent, _ = await reply(engine, kind, None, cached=cached)
    free = bound and kind.forcing in ("auto", "prefill")
    prompt = prompt_of(engine, sent) if free else ""
    whole = pieces(engine, prompt, LIMIT, cached=cached) if free else []
    figures.bound = 0 if free else None
    while figures.places < places:
        at = chance.randrange(4, 40)
        got, _, requests = await reply(engine, kind, at, cached=cached)
        if requests == 1:  # the reply ended before
            continue
        figures.places += 1
        if (got.parts, got.reason) == (expected.parts, expected.reason):
            figures.equal += 1
        else:
            figures.valid += is_valid(got)
        if figures.bound is not None:
            if cached:
                pieces(engine, prompt, at, cached=True)
            rest = pieces(engine, prompt + "".join(whole[:at]), LIMIT - at, cached=cached)
            figures.bound += "".join(rest) == "".join(whole[at:])
    return figures


def rows(model: str, places: int, *, cached: bool) -> Iterator[str]:
    """Yield the rows of the table."""
    yield f"{'reply':32} {'equal':>9} {'else valid':>12} {'server itself':>15}"
    with served("model_server.py", str(MODELS[model]())) as engine:
        for kind in KINDS:
            figures = anyio.run(lambda kind=kind: measure(engine, kind, places, cached=cached))
            rest = figures.places - figures.equal
            itself = "" if figures.bound is None else f"{figures.bound} of {figures.places}"
            yield f"{kind!s:32} {figures.equal:>3} of {places} {figures.valid:>6} of {rest} {itself:>15}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="smollm2")
    parser.add_argument("--places", type=int, default=50, metavar="N")
    parser.add_argument("--restarted", action="store_true", help="the server has lost its cache")
    given = parser.parse_args()
    for row in rows(given.model, given.places, cached=not given.restarted):
        print(row, flush=True)


if __name__ == "__main__":
    main()
