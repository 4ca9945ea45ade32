"""The model list (`GET /v1/models`, `GET /v1/models/{id}`): the upstreams' models, and how each of them is used.

Protocols whose clients use other paths (`/api/tags`) write the same models in their own format (`write_models`), and
keep the fields of upstreams that use the same protocol.

Every upstream is queried in its own protocol. A model is listed if a request that names it would reach that upstream.
The client's own key is sent only to the first upstream, which receives the client's requests unless a rule routes them
elsewhere. Entries keep the upstream's fields. Each entry also gets the fields that Chat Completions and Messages
clients look for, and `streamtool`, which contains the mode and format used for the model and the reason for that
format. Model names defined in the settings are listed as well.
"""

import itertools
from collections.abc import Mapping

import anyio

from streamtool.asgi.types import ASGIApp, Receive, Scope, ask, route_path
from streamtool.core.clients import client_of
from streamtool.core.errors import NotFoundError, StreamtoolError, UpstreamError, UpstreamRefused
from streamtool.core.json_value import Json
from streamtool.protocols.interfaces import ListedModel, ListingProtocol
from streamtool.protocols.registry import CLIENTS, UPSTREAMS
from streamtool.protocols.shared import wire
from streamtool.protocols.table import LISTS, at_path
from streamtool.settings import Settings
from streamtool.upstream.chat_templates import ChatTemplates

PATH = "/v1/models"
_WINDOW = ("context_length", "context_window", "max_model_len", "max_input_tokens")
"""Field names that OpenRouter, Groq, vLLM and Anthropic use for the size of the context window."""
_GEMINI = "/v1beta/models"
_OF_GEMINI = b"x-goog-"
"""Prefix of the headers that Gemini clients send."""
_WILD = frozenset("*?[")


def requested_path(scope: Scope) -> str:
    """Return the path of a request. If a Gemini client, identified by its headers, lists models at OpenAI's path,
    return Gemini's path instead.
    """
    path = route_path(scope)
    theirs = path.startswith(PATH) and any(name.lower().startswith(_OF_GEMINI) for name, _ in scope["headers"])
    return _GEMINI + path.removeprefix(PATH) if theirs else path


class Models:
    """The list of models, fetched again for each request."""

    def __init__(self, settings: Settings, apps: Mapping[str, ASGIApp], templates: ChatTemplates) -> None:
        self._settings = settings
        self._templates = templates
        self._apps = apps

    async def answer(self, scope: Scope, path: str, body: bytes, receive: Receive) -> bytes:
        """Return the response body for this path.

        Raises NotFoundError for an unknown model, and UpstreamError if no upstream responds.
        """
        listed = at_path(LISTS, path)
        if listed is not None:
            return await self._in_protocol(listed[0], scope, path, body, receive)
        client = client_of(scope["headers"])
        found = await self._fetch_all(scope, receive)
        entries = [self._entry(model, own, client) for model, own in found.items()]
        wanted = path.removeprefix(PATH).strip("/")
        if wanted:
            for entry in entries:
                if entry["id"] == wanted:
                    return wire.encode(entry)
            raise NotFoundError(f"unknown model {wanted[:80]}; GET {PATH} lists all models", code="model_not_found")
        ids = [entry["id"] for entry in entries]
        paging = {"has_more": False, "first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
        return wire.encode({"object": "list", "data": entries, **paging})

    async def _in_protocol(self, name: str, scope: Scope, path: str, body: bytes, receive: Receive) -> bytes:
        """Return the models in the format of the protocol `name`."""
        protocol: ListingProtocol = CLIENTS[name]  # type: ignore[assignment]  # the table of protocols ensures this
        wanted = protocol.requested_model(path, body)
        if wanted is not None and body and self._protocol(wanted) == name:  # its own upstream can report more
            app = self._apps[self._upstream(wanted)]
            answer = await ask(app, scope, "POST", path, body=body, headers=scope["headers"], receive=receive)
            if answer.status == 200:
                return answer.body
        models = []
        for model, own in (await self._fetch_all(scope, receive)).items():
            told = own if self._protocol(model) == name else {}
            models.append(ListedModel(model, told, self._templates.inform(self._settings.for_model(model)).context))
        return protocol.write_models(path, wanted, models)

    def _upstream(self, model: str) -> str:
        """Return the name of the upstream that receives requests for the model."""
        upstream = self._settings.for_model(model).upstream
        return next(iter(self._apps)) if upstream is None else upstream.name

    def _protocol(self, model: str) -> str:
        """Return the protocol of the model's upstream."""
        upstream = self._settings.upstreams.get(self._upstream(model))
        return self._templates.engines.protocol_of(upstream) if upstream else "chat"

    async def _fetch_all(self, scope: Scope, receive: Receive) -> Mapping[str, Mapping[str, Json]]:
        """Return each model's fields from its upstream, by model name. The models named in the settings precede the
        others.
        """
        found: dict[str, Mapping[str, Mapping[str, Json]]] = {}
        errors: list[StreamtoolError] = []

        async def look(name: str) -> None:
            try:
                found[name] = await self._fetch(name, scope, receive)
            except StreamtoolError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            for name in self._apps:
                tasks.start_soon(look, name)
        if not found:
            raise errors[0]
        named = {rule.match: dict[str, Json]() for rule in self._settings.models if _WILD.isdisjoint(rule.match)}
        listed = itertools.chain.from_iterable(found[name].items() for name in self._apps if name in found)
        return {**named, **dict(listed)}

    async def _fetch(self, name: str, scope: Scope, receive: Receive) -> Mapping[str, Mapping[str, Json]]:
        upstream = self._settings.upstreams.get(name)
        protocol = UPSTREAMS[upstream.wire_protocol if upstream else "chat"]
        headers = [(key.lower(), value) for key, value in scope["headers"]]
        if name != next(iter(self._apps)):
            headers = [pair for pair in headers if pair[0] not in wire.KEY_HEADERS]
        answer = await ask(self._apps[name], scope, "GET", protocol.MODELS_PATH, headers=headers, receive=receive)
        if answer.status != 200:
            told = protocol.read_error(answer.status, answer.body)
            raise UpstreamRefused(told.message, status=answer.status, code=told.code) if answer.status < 500 else told
        try:
            names = protocol.read_models(answer.body)
            whole = wire.decode_tolerant(answer.body)
        except ValueError:
            raise UpstreamError(f"the model list of {name} cannot be read") from None
        items = (whole.get("data") or whole.get("models")) if isinstance(whole, dict) else None
        own = {
            (item.get("id") or item["name"]).removeprefix("models/"): item
            for item in (items if isinstance(items, list) else ())
            if isinstance(item, dict) and isinstance(item.get("id") or item.get("name"), str)
        }
        return {model: own.get(model, {}) for model in names if self._reaches(model, name)}

    def _reaches(self, model: str, name: str) -> bool:
        upstream = self._settings.for_model(model).upstream
        return upstream is None or upstream.name == name

    def _entry(self, model: str, own: Mapping[str, Json], client: str) -> dict[str, Json]:
        settings = self._templates.inform(self._settings.for_model(model), client)
        upstream = settings.upstream.name if settings.upstream else None
        own = own if "id" in own else {}
        created = own.get("created", 0)
        return {
            "id": model,
            "object": "model",
            "created": created if isinstance(created, int) else 0,
            "owned_by": upstream or "streamtool",
            "type": "model",
            "display_name": model,
            "created_at": "1970-01-01T00:00:00Z",
            **own,
            **({} if settings.context is None else dict.fromkeys(_WINDOW, settings.context)),
            "streamtool": {
                "mode": settings.mode,
                "format": settings.format,
                "reason": settings.training.reason,
                "model": settings.name,
                "upstream": upstream,
                **({} if settings.engine is None else {"engine": settings.engine.title}),
            },
        }
