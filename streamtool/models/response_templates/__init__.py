"""Response templates: descriptions of a model's replies that models ship, as formats.

A template is JSON in `tokenizer_config.json`, under `response_template`. Each of its `fields` (`content`,
`reasoning_content`, `tool_calls`) defines the literals or patterns that open and close it, and how to parse the text
between them; `transform` specifies which parts of that text are the call's name and arguments. Since the parser reads
text in pieces, a template is never run. It is translated, once, into a format (`statemachine/formats/format.py`), which
is then taught, streamed and forced like any other. A construct that has no equivalent raises FormatError, which names
it.

A format reads more than its template: a name may contain characters that the template's pattern does not allow, closers
may be missing, JSON is repaired, and values are typed by the tool's schema. If a row of the table reads and writes the
same calls, that row is used, because it reads even more.

Source: the documentation of transformers 5.24 (`chat_response_parsing.md`) and its reference (`utils/chat_parsing`).
"""

from streamtool.models.response_templates.reading import Described, as_recognised, read

__all__ = ["Described", "as_recognised", "read"]
