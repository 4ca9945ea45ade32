"""The form that the client requires of an answer: JSON, which must match the schema if there is one.

Nothing is repaired: either the answer reaches the client as the model wrote it, or the model is asked for another one.
"""

from collections.abc import Mapping

import msgspec
from attrs import frozen

from streamtool.core.conversation import OutputFormat
from streamtool.core.errors import SettingsError
from streamtool.core.json_value import Json
from streamtool.schemas.validator import Validator


@frozen
class AnswerForm:
    """The required form of an answer."""

    schema: Mapping[str, Json] | None
    """The answer's schema. If None, any object is allowed."""
    validator: Validator | None
    """The schema's validator. None if `schema` is None or the `validate` extra is not installed."""

    @classmethod
    def of(cls, output: OutputFormat) -> "AnswerForm":
        """Return the form that the client wants. If the `validate` extra is not installed, answers are not checked
        against the schema.
        """
        validator = None
        if output.schema is not None:
            try:
                validator = Validator.of(output.schema)
            except SettingsError:  # the extra is not installed
                validator = None
        return cls(output.schema, validator)

    def violation(self, answer: str) -> str | None:
        """Return what is wrong with the answer, in one sentence, or None if the answer has the required form."""
        try:
            value = msgspec.json.decode(answer)
        except (ValueError, RecursionError):
            return "It was not JSON, or there was something besides the JSON."
        if not isinstance(value, dict):
            wants_object = self.schema is None or self.schema.get("type") == "object"
            return "It was no JSON object." if wants_object else None
        if self.validator is None:
            return None
        repaired, invalid, _ = self.validator.check(answer)
        if invalid is not None:
            return invalid.message
        return None if repaired == answer else "A value in it had the wrong type."
