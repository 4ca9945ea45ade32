"""Model lists and capabilities in Ollama's format."""

from collections.abc import Mapping, Sequence
from typing import Final

from streamtool.core.errors import NotFoundError, RequestError
from streamtool.core.json_value import Json
from streamtool.protocols.interfaces import ListedModel
from streamtool.protocols.shared import wire

_VERSION: Final = "0.12.6"
"""Ollama version to report. Clients check whether the version is recent enough to support tools and reasoning."""
_DETAILS: Final[Mapping[str, Json]] = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": [],
    "parameter_size": "",
    "quantization_level": "",
}
_TIME: Final = "1970-01-01T00:00:00Z"


def requested_model(path: str, body: bytes) -> str | None:
    """Return the name of the requested model, or None if all models are requested. Raises RequestError."""
    if not path.endswith("/show"):
        return None
    try:
        match wire.decode_tolerant(body):
            case {"model": str(name)} | {"name": str(name)} if name:
                return name
    except ValueError:
        pass
    raise RequestError("`model` must name a model.", param="model")


def write_models(path: str, wanted: str | None, models: Sequence[ListedModel]) -> bytes:
    """Return the JSON body for `path`. Raises NotFoundError for an unknown model."""
    if path.endswith("/version"):
        return wire.encode({"version": _VERSION})
    if path.endswith("/ps"):
        return wire.encode({"models": []})
    if wanted is None:
        return wire.encode({"models": [_entry(model) for model in models]})
    tag = f"{wanted}:latest"
    found = next((model for model in models if model.name in (wanted, tag)), None)
    if found is None:
        raise NotFoundError(f"model '{wanted[:80]}' not found", code="model_not_found")
    return wire.encode(_details(found))


def _entry(model: ListedModel) -> dict[str, Json]:
    made = {"name": model.name, "model": model.name, "modified_at": _TIME, "size": 0, "digest": "", "details": _DETAILS}
    return {**made, **model.upstream_fields}


def _details(model: ListedModel) -> dict[str, Json]:
    family = {"general.architecture": "streamtool"}
    window = {} if model.context is None else {"streamtool.context_length": model.context}
    return {
        "modelfile": "",
        "parameters": "",
        "template": "{{ .Prompt }}",
        "details": model.upstream_fields.get("details", _DETAILS),
        "model_info": {**family, **window},
        "capabilities": ["completion", "tools"],
        "modified_at": model.upstream_fields.get("modified_at", _TIME),
    }
