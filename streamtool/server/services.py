"""Services that exchanges need in addition to their settings, opened once per middleware or transport."""

import json
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any, Final

from statemachine import precompile
from streamtool.asgi.off_loop import off_loop
from streamtool.core.errors import SettingsError, StreamtoolError
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.interfaces import Services
from streamtool.protocols.registry import UPSTREAMS, client_protocol
from streamtool.refusals import Phrases, PhrasesError, default_phrases, extended_phrases, sentence_tables
from streamtool.settings import Settings
from streamtool.store.capabilities import CapabilityCache
from streamtool.store.replies import Store
from streamtool.upstream.chat_templates import ChatTemplates
from streamtool.upstream.tokenizers import TokenizerFiles

_CALL: Final[dict[str, Any]] = {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}
_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "The file.", "minLength": 1},
        "mode": {"type": "string", "enum": ["text", "bytes"], "default": "text"},
        "lines": {"type": "array", "items": {"type": "integer", "minimum": 1}},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "options": {
            "type": "object",
            "properties": {"follow": {"type": "boolean"}, "filter": {"type": ["string", "null"]}},
            "required": ["follow"],
            "additionalProperties": False,
        },
    },
    "required": ["path"],
}
_TOOLS: Final = [
    {"name": "read", "description": "Reads a file.\n\nUsage:\n" + "- Give its path.\n" * 500, "parameters": _SCHEMA},
    {"name": "list", "description": "Lists the files.", "parameters": {"type": "object", "properties": {}}},
]
_REQUEST: Final = {
    "model": "rehearsal",
    "stream": True,
    "messages": [
        {"role": "system", "content": "Be brief. Read the files first.\n" * 2000},
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "I read it.", "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "a <b>"},
    ],
    "tools": [{"type": "function", "function": tool} for tool in _TOOLS],
}
_REPLIES: Final = ("The file is <empty>.", '<tool_call>{"name": "read", "arguments": {"path": "a"}}</tool_call>')
"""The request and the replies of a rehearsal: with a history and tools, as agents write them; with and without a call.
The request is as long as theirs, so that the process has the memory for it.
"""
_CLIENTS: Final = ("chat", "messages", "responses")
"""The protocols that agents speak, in which the request of a rehearsal is written."""


def open_services(settings: Settings, templates: ChatTemplates, store: Store) -> Services:
    """Return all services except the store, which is specific to each client. Raises SettingsError for an unusable
    file.
    """
    shared = frozenset(name for name, upstream in settings.upstreams.items() if not settings.shows_clients(upstream))
    return Services(
        capabilities=CapabilityCache(shared=shared, store=store if store.blocks else None),
        templates=templates,
        tokenizers=TokenizerFiles(settings),
        phrases=open_phrases(settings),
    )


def open_phrases(settings: Settings) -> Phrases | None:
    """Return the built-in phrases that identify refusals together with those in the `phrases` file. Return None if no
    file is set, or if refusals are not retried.

    The file is read once. Its phrases and the built-in ones are compiled into automata separate from the default ones.
    Its format is described in docs/when-the-model-does-not-call.md. Raises SettingsError for an unusable file.
    """
    if settings.refusals != "retry" or settings.phrases is None:
        return None
    place = f'phrases: "{settings.phrases}"'
    try:
        return extended_phrases(Path(settings.phrases).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{place} cannot be read: {error.strerror}", param="phrases") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{place} is not UTF-8", param="phrases") from None
    except PhrasesError as error:
        raise PhrasesError(f"{place}: {error.message}", param="phrases", code=error.code) from None


async def warm_up(settings: Settings, templates: ChatTemplates, services: Services) -> None:
    """Compile the tables and phrases that the first replies would otherwise have to wait for, and rehearse a request,
    in worker threads.

    A server awaits this before it accepts requests: a thread that compiles while a reply streams delays each delta.
    """
    for formats in dict.fromkeys((settings.formats, *templates.listened_formats())):
        await off_loop(partial(precompile, formats))
    if settings.refusals == "retry" and settings.phrases is None:
        phrases = await off_loop(default_phrases)
        await off_loop(partial(phrases.denied.prepare, ascii_lowercase))
        await off_loop(sentence_tables)
    await off_loop(partial(_rehearse, settings, services))


def _rehearse(settings: Settings, services: Services) -> None:
    """Serve made-up requests without an upstream, so that the first real request finds what is compiled, imported or
    cached on first use. The replies are those of a chat upstream: the reader of another protocol's replies begins with
    the first real one. Nothing happens if the settings reject the requests.
    """
    with suppress(StreamtoolError):
        asked = client_protocol("chat").read_request(json.dumps(_REQUEST).encode(), settings.limits)
        model = settings.for_model(asked.model)
        for client, text in product(_CLIENTS, _REPLIES):
            body = UPSTREAMS[client].write_request(asked, model, stream=True)
            exchange = Exchange(settings, client_protocol(client), body, (), new_id=str, now=0, services=services)
            exchange.request()
            choice = {"index": 0, "delta": {"content": text}, "finish_reason": "stop"}
            exchange.respond(200, ((b"content-type", b"text/event-stream"),))
            exchange.feed(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
            exchange.close()
            exchange.record()
            exchange.near_call()
