"""Tells a client of Gemini which models there are."""

from collections.abc import Sequence
from typing import Any, Final

from streamtool.errors import NotFoundError
from streamtool.protocols import wire
from streamtool.protocols.interfaces import ListedModel

Json = Any  # a JSON value

_METHODS: Final = ["generateContent", "countTokens"]


def asked_model(path: str, body: bytes) -> str | None:  # noqa: ARG001  other protocols name it there
    """The model that a request asks about; None: all of them."""
    return path.partition("/models/")[2] or None


def write_models(path: str, wanted: str | None, models: Sequence[ListedModel]) -> bytes:  # noqa: ARG001  there is one list
    """The list, or what is told of one model. Raises NotFoundError for one that there is not."""
    if wanted is None:
        return wire.encode({"models": [_entry(model) for model in models]})
    found = next((model for model in models if model.name == wanted), None)
    if found is None:
        raise NotFoundError(f"models/{wanted[:80]} is not found; GET /v1beta/models lists them", code="model_not_found")
    return wire.encode(_entry(found))


def _entry(model: ListedModel) -> dict[str, Json]:
    made = {
        "name": f"models/{model.name}",
        "version": "1",
        "displayName": model.name,
        "description": "",
        "supportedGenerationMethods": _METHODS,
    }
    window = {} if model.context is None else {"inputTokenLimit": model.context, "outputTokenLimit": model.context}
    return {**made, **model.told, **window}
