"""Model lists in Gemini's format."""

from collections.abc import Sequence
from typing import Final

from streamtool.core.errors import NotFoundError
from streamtool.core.json_value import Json
from streamtool.protocols.interfaces import ListedModel
from streamtool.protocols.shared import wire

_METHODS: Final = ["generateContent", "countTokens"]


def requested_model(path: str, body: bytes) -> str | None:  # noqa: ARG001  other protocols name the model in the body
    """Return the name of the requested model, or None if all models are requested."""
    return path.partition("/models/")[2] or None


def write_models(path: str, wanted: str | None, models: Sequence[ListedModel]) -> bytes:  # noqa: ARG001  there is only one list
    """Return the JSON body with all models, or only the `wanted` one. Raises NotFoundError for an unknown model."""
    if wanted is None:
        return wire.encode({"models": [_entry(model) for model in models]})
    found = next((model for model in models if model.name == wanted), None)
    if found is None:
        raise NotFoundError(
            f"models/{wanted[:80]} not found; GET /v1beta/models lists all models", code="model_not_found"
        )
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
    return {**made, **model.upstream_fields, **window}
