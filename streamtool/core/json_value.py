"""The types of decoded JSON, shared by the data model and everything built on it."""

from collections.abc import Mapping
from typing import Any

Json = Any
"""A decoded JSON value: dict, list, str, int, float, bool or None."""
JsonObject = dict[str, Json]
Fields = Mapping[str, Json]
"""A JSON object that is read but never modified."""
