"""The projection: a conversation with tools becomes one that a model of text only can read.

    client's system text, then the contract
    messages in order: past calls and results as text
    the tail: what holds for this reply only

The messages are read once, from first to last, and nothing already written depends on what comes later. So the prompt
without its tail is a prefix of the next turn's prompt. What needs no change keeps its `raw` and travels as it came.

With `roles = "strict"` the messages are as every chat template takes them: one system message, then user and assistant
by turns. Without a system role everything that is no assistant message is the user's, the contract first.
"""

from collections.abc import Iterable, Sequence

from attrs import evolve

import statemachine
from streamtool.conversation import Conversation, MediaPart, Message, Part, TextPart, ToolCall, ToolChoice, ToolResult
from streamtool.errors import RequestError
from streamtool.prompting.history import (
    arguments_text,
    calls_text,
    interrupted_text,
    media_of,
    orphan_text,
    part_text,
    result_text,
    strip,
)
from streamtool.prompting.one_object import answer_text, is_whole, with_text
from streamtool.prompting.tool_prompt import Contract, contract, contract_of_names
from streamtool.prompting.transcripts import Recall, recalled
from streamtool.prompting.turn_instructions import tail
from streamtool.settings import ModelSettings
from streamtool.turns import Pairing, unanswered

_EXAMPLE_LENGTH = 400  # characters of arguments out of the history that are still fit for an example

_BEGIN = Message("user", (TextPart("(The assistant speaks first.)"),))


def project(
    conversation: Conversation,
    model: ModelSettings,
    format: str,
    *,
    correction: str | None = None,
    continued: str | None = None,
    open_end: bool = False,
    recall: Recall | None = None,
) -> Conversation:
    """The conversation with tools, calls and results as text, for a model that is taught `format`.

    A conversation with neither tools nor tool history is returned as it is. `correction` joins the tail of a further
    attempt; `continued` is what the reply already holds, as an assistant message before the tail. `recall` knows how
    the model wrote past calls (`verbatim`). What had to be left out or mended is told in `dropped`. Raises
    RequestError: a call without its result at the end, unless `open_end` (with `history = "strict"`: anywhere), a
    result without its call (strict only), a contract that the context cannot hold.
    """
    if not conversation.tools and not conversation.has_tool_history:
        return conversation
    if not open_end:
        _no_open_end(conversation.messages)
    made = _contract_for(conversation, model, format)
    projector = _Projector(model, format, recall)
    for message in conversation.messages:
        projector.add(message)
    messages = _with_contract(_spoken(projector.close()), made.text)
    if continued:
        messages.append(Message("assistant", (TextPart(continued),)))
    if model.prompt.roles == "strict" or not model.prompt.system_role:
        messages = _alternating(messages, system_role=model.prompt.system_role)
    _add_tail(messages, tail(conversation.choice, correction, conversation.options.output))
    notes = [] if made.tier == "full" else [f"tools shortened to {made.tier}"]
    return evolve(
        conversation,
        messages=tuple(messages),
        tools=(),
        choice=ToolChoice(),
        options=evolve(conversation.options, output=None),
        dropped=(*conversation.dropped, *notes, *projector.notes),
    )


def _no_open_end(messages: Sequence[Message]) -> None:
    missing = unanswered(messages)
    if missing:
        names = ", ".join(call.id for call in missing)
        raise RequestError(
            f"the conversation ends before the result of {names}: send a result for each call",
            param="messages",
            code="missing_result",
        )


def _contract_for(conversation: Conversation, model: ModelSettings, format: str) -> Contract:
    parallel = conversation.choice.parallel
    if conversation.tools:
        return contract(conversation.tools, format, model, parallel=parallel)
    first: dict[str, statemachine.Call] = {}
    for message in conversation.messages:
        for call in message.calls:
            arguments = arguments_text(call)
            first.setdefault(
                call.name, statemachine.Call(call.name, arguments if len(arguments) <= _EXAMPLE_LENGTH else "{}")
            )
    return contract_of_names(list(first.values()), format, model, parallel=parallel) if first else Contract("", "full")


def _spoken(messages: list[Message]) -> list[Message]:
    """The messages without those that say nothing, which some upstreams refuse; the last one stands in any case."""
    return [message for message in messages[:-1] if not _is_blank(message)] + messages[-1:]


def _with_contract(messages: list[Message], text: str) -> list[Message]:
    """The contract after the client's own system text: at the end of the last leading system message."""
    if not text:
        return messages
    leading = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    if leading == 0:
        return [Message("system", (TextPart(text),)), *messages]
    messages[leading - 1] = _with_text(messages[leading - 1], text)
    return messages


def _with_text(message: Message, text: str) -> Message:
    """The message with a further paragraph."""
    return evolve(message, content=_joined((message.content, (TextPart(text),))), raw=())


def _joined(contents: Iterable[Sequence[Part]]) -> tuple[Part, ...]:
    """The parts of all, the texts that meet joined by an empty line."""
    parts: list[Part] = []
    meeting: list[str] = []
    for content in contents:
        for place, part in enumerate(content):
            if meeting and not (place == 0 and isinstance(part, TextPart)):
                parts.append(TextPart("\n\n".join(meeting)))
                meeting = []
            if not isinstance(part, TextPart):
                parts.append(part)
            elif meeting == [""]:
                meeting = [part.text]
            else:
                meeting.append(part.text)
    return (*parts, TextPart("\n\n".join(meeting))) if meeting else tuple(parts)


def _add_tail(messages: list[Message], text: str) -> None:
    """Say this behind the last message, as the user."""
    if text and messages and messages[-1].role == "user":
        messages[-1] = _with_text(messages[-1], text)
    elif text:
        messages.append(Message("user", (TextPart(text),)))


def _alternating(messages: Sequence[Message], *, system_role: bool) -> list[Message]:
    """The same texts as every chat template takes them.

    One system message at most, at the start; then user and assistant by turns, the user first, nothing empty.
    """
    made: list[Message] = []
    same: list[list[tuple[Part, ...]]] = []
    """What the messages are made of."""
    for message in messages:
        leads = system_role and all(before.role == "system" for before in made)
        role = "user" if message.role == "system" and not leads else message.role
        last = message is messages[-1] and bool(made) and made[-1].role != role
        if _is_blank(message) and not last:
            continue
        if role == "assistant" and (not made or made[-1].role == "system"):
            made.append(_BEGIN)
            same.append([_BEGIN.content])
        if made and made[-1].role == role:
            same[-1].append(message.content)
        else:
            made.append(message if role == message.role else evolve(message, role=role, raw=()))
            same.append([message.content])
    return [
        message if len(contents) == 1 else evolve(message, content=_joined(contents), raw=())
        for message, contents in zip(made, same, strict=True)
    ]


class _Projector:
    """Reads the messages in order and writes the projected ones; results that stand together become one message."""

    __slots__ = (
        "_calls",
        "_format",
        "_out",
        "_pairing",
        "_places",
        "_prompt",
        "_recall",
        "_results",
        "_tails",
        "notes",
    )

    def __init__(self, model: ModelSettings, format: str, recall: Recall | None) -> None:
        self._prompt = model.prompt
        self._format = format
        self._recall = recall
        self._out: list[Message] = []
        self._pairing = Pairing()
        self._calls: tuple[ToolCall, ...] = ()
        self._places: dict[int, int] = {}
        """The places of these calls, by their identity."""
        self._results: list[tuple[int, str, Sequence[MediaPart]]] = []
        self._tails: dict[int, str] = {}
        """What was said for one reply alone, by the number of the message that is this reply."""
        self.notes: list[str] = []

    def add(self, message: Message) -> None:
        """Take the next message."""
        match message.role:
            case "system":
                self._flush(())
                self._out.append(message)
            case "assistant":
                self._interrupt()
                self._flush(())
                self._assistant(message)
            case "user":
                self._user(message)

    def close(self) -> list[Message]:
        """All projected messages."""
        self._flush(())
        said = self._out if self._prompt.media else [_plain(message) for message in self._out]
        messages: list[Message] = []
        for place, message in enumerate(said):
            _add_tail(messages, self._tails.get(place, ""))
            messages.append(message)
        return messages

    def _assistant(self, message: Message) -> None:
        self._pairing.emit(message.calls)
        self._calls = message.calls
        self._places = {id(call): place for place, call in enumerate(message.calls)}
        if message.calls:
            text, tail = (None, "") if self._recall is None else recalled(message, self._format, self._recall)
            if tail:
                self._tails[len(self._out)] = tail
            if text is None:
                text = with_text(message.text, calls_text(message.calls, self._format), self._format)
            media = tuple(part for part in message.content if isinstance(part, MediaPart))
            self._out.append(evolve(message, content=(*media, TextPart(text)), calls=(), raw=()))
        elif is_whole(self._format) and message.text:
            self._out.append(evolve(message, content=(TextPart(answer_text(message.text, self._format)),), raw=()))
        else:
            self._out.append(message)

    def _user(self, message: Message) -> None:
        for result in message.results:
            self._result(result)
        if message.results and not message.content:
            return
        self._interrupt()
        content = self._stripped(message.content)
        if message.results:
            self._flush(content)
            return
        self._flush(())
        if content == message.content:
            self._out.append(message)
        elif content:
            self._out.append(evolve(message, content=content, raw=()))

    def _result(self, result: ToolResult) -> None:
        call = self._pairing.answer(result)
        settings = self._prompt.results
        media = media_of(result, settings) if self._prompt.media else ()
        if call is None:
            self._note(f"result {result.id} has no call")
            self._results.append((len(self._calls), orphan_text(result, settings), media))
            return
        place = self._places.get(id(call), len(self._calls))
        self._results.append((place, result_text(result, call.name, settings), media))

    def _interrupt(self) -> None:
        """What is still open gets no result any more: something else was said."""
        for call in self._pairing.interrupt():
            self._note(f"call {call.id} has no result: interrupted")
            self._results.append((self._places[id(call)], interrupted_text(call, self._prompt.results), ()))

    def _flush(self, content: Sequence[Part]) -> None:
        """The results that have come, in the order of their calls, and then `content`, as one user message."""
        if self._results:
            self._results.sort(key=lambda entry: entry[0])
            text = "\n\n".join(entry[1] for entry in self._results)
            media = [part for entry in self._results for part in entry[2]]
            content = _joined(((TextPart(text), *media), content))
            self._results = []
        if content:
            self._out.append(Message("user", tuple(content)))

    def _stripped(self, content: tuple[Part, ...]) -> tuple[Part, ...]:
        tags = self._prompt.results.strip
        if not tags:
            return content
        texts = [evolve(part, text=strip(part.text, tags)) if isinstance(part, TextPart) else part for part in content]
        return tuple(now for now, was in zip(texts, content, strict=True) if now == was or not _is_empty(now))

    def _note(self, sentence: str) -> None:
        if self._prompt.history == "strict":
            raise RequestError(sentence, param="messages", code="broken_history")
        self.notes.append(sentence)


def _is_blank(message: Message) -> bool:
    return not message.reasoning and all(_is_empty(part) for part in message.content)


def _plain(message: Message) -> Message:
    """The message as one text."""
    return evolve(message, content=(TextPart("\n".join(map(part_text, message.content))),), raw=())


def _is_empty(part: Part) -> bool:
    return isinstance(part, TextPart) and not part.text.strip()
