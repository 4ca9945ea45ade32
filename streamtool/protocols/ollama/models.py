"""Tells a client of Ollama which models there are, and what each of them can do."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from streamtool.errors import NotFoundError, RequestError
from streamtool.protocols import wire
from streamtool.protocols.interfaces import ListedModel

Json = Any  # a JSON value

_VERSION: Final = "0.12.6"
"""Of Ollama, whose API is spoken here; clients look whether it is new enough for tools and reasoning."""
_DETAILS: Final[Mapping[str, Json]] = {
    "parent_model": "", "format": "", "family": "", "families": [], "parameter_size": "", "quantization_level": "",
}  # fmt: skip
_TIME: Final = "1970-01-01T00:00:00Z"


def asked_model(path: str, body: bytes) -> str | None:
    """The model that a request asks about; None: all of them. Raises RequestError."""
    if not path.endswith("/show"):
        return None
    try:
        match wire.decode_tolerant(body):
            case {"model": str(name)} | {"name": str(name)} if name:
                return name
    except ValueError:
        pass
    raise RequestError("Name the model in `model`.", param="model")


def write_models(path: str, wanted: str | None, models: Sequence[ListedModel]) -> bytes:
    """What is told at `path`. Raises NotFoundError for a model that there is not."""
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
    return wire.encode(_shown(found))


def _entry(model: ListedModel) -> dict[str, Json]:
    made = {"name": model.name, "model": model.name, "modified_at": _TIME, "size": 0, "digest": "", "details": _DETAILS}
    return {**made, **model.told}


def _shown(model: ListedModel) -> dict[str, Json]:
    family = {"general.architecture": "streamtool"}
    window = {} if model.context is None else {"streamtool.context_length": model.context}
    return {
        "modelfile": "",
        "parameters": "",
        "template": "{{ .Prompt }}",
        "details": model.told.get("details", _DETAILS),
        "model_info": {**family, **window},
        "capabilities": ["completion", "tools"],
        "modified_at": model.told.get("modified_at", _TIME),
    }
