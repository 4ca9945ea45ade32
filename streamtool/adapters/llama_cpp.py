"""llama-cpp-python: a chat handler named `streamtool`, which streams calls in any format.

    import streamtool.adapters.llama_cpp
    llama = Llama(path, chat_format="streamtool")

The model's own chat template writes the prompt, including the tools; `reading` adds the parser to any other handler. If
`tool_choice` names a tool, the wrapped handler's reply is returned unchanged, because its grammar allows the model to
write only arguments.

llama-cpp-python removes control tokens from the text, so calls in a format whose markers are control tokens cannot be
recognized.
"""

from collections.abc import Iterator
from typing import Any

from llama_cpp.llama_chat_format import LlamaChatCompletionHandlerRegistry, get_chat_completion_handler

from statemachine import Parser
from streamtool.adapters.deltas import OpenAIDeltas, message_of, openai_deltas

NAME = "streamtool"
OWN_TEMPLATE, OTHERWISE = "chat_template.default", "chatml"
"""The handler for the template in the model's file, and the handler for a model without a template."""


def reading(inner: Any = None) -> Any:
    """Wrap a chat handler so that the calls in its replies are recognized. If `inner` is None, the handler for the
    model's own template is wrapped.
    """

    def handler(*, llama: Any, tools: list[Any] | None = None, tool_choice: Any = None, **options: Any) -> Any:
        asked = inner or llama._chat_handlers.get(OWN_TEMPLATE) or get_chat_completion_handler(OTHERWISE)  # noqa: SLF001
        reply = asked(llama=llama, tools=tools, tool_choice=tool_choice, **options)
        if not tools or tool_choice == "none" or isinstance(tool_choice, dict):
            return reply
        deltas = openai_deltas(Parser(tools))
        return complete_reply(reply, deltas) if isinstance(reply, dict) else stream_reply(reply, deltas)

    return handler


def stream_reply(chunks: Iterator[Any], deltas: OpenAIDeltas) -> Iterator[Any]:
    """Replace the text in the chunks with the deltas that the parser produces for it."""
    for chunk in chunks:
        (choice,) = chunk["choices"]
        reason, delta = choice["finish_reason"], choice["delta"]
        found = deltas.feed(delta.get("content") or "")
        if reason is not None:
            found += deltas.close(reason)
        if "role" in delta:
            found.insert(0, {"role": delta["role"]})
        for each in found:
            yield chunk | {"choices": [choice | {"delta": each, "finish_reason": None}]}
        if reason is not None:
            yield chunk | {"choices": [choice | {"delta": {}, "finish_reason": deltas.finish_reason}]}


def complete_reply(reply: Any, deltas: OpenAIDeltas) -> Any:
    """Replace the text of a complete reply with the message that the parser produces for it."""
    (choice,) = reply["choices"]
    found = deltas.feed(choice["message"]["content"] or "") + deltas.close(choice["finish_reason"])
    message = choice["message"] | {"content": None} | message_of(found)
    return reply | {"choices": [choice | {"message": message, "finish_reason": deltas.finish_reason}]}


LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(NAME, reading(), overwrite=True)
