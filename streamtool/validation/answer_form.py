"""Whether an answer has the form that the client has asked for: JSON, and if there is a schema, what it says.

Nothing is mended: an answer goes to the client as the model wrote it, or the model is asked for another one.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from attrs import frozen

from streamtool.conversation import OutputFormat
from streamtool.errors import SettingsError
from streamtool.validation.validator import Validator

Json = Any  # a decoded JSON value


@frozen
class AnswerForm:
    """The form of an answer."""

    schema: Mapping[str, Json] | None
    """None: any object."""
    validator: Validator | None
    """None: there is nothing to check, or nothing to check with."""

    @classmethod
    def of(cls, output: OutputFormat) -> "AnswerForm":
        """The form that the client wants. Without the extra `validate` a schema is not checked against."""
        validator = None
        if output.schema is not None:
            try:
                validator = Validator.of(output.schema)
            except SettingsError:  # the extra is missing
                validator = None
        return cls(output.schema, validator)

    def violation(self, answer: str) -> str | None:
        """What is wrong with the answer, in one sentence; None: nothing that can be found."""
        try:
            value = msgspec.json.decode(answer)
        except (ValueError, RecursionError):
            return "It was not JSON, or there was something besides the JSON."
        if not isinstance(value, dict):
            wants_object = self.schema is None or self.schema.get("type") == "object"
            return "It was no JSON object." if wants_object else None
        if self.validator is None:
            return None
        mended, invalid, _ = self.validator.check(answer)
        if invalid is not None:
            return invalid.message
        return None if mended == answer else "A value in it had the wrong type."
