"""Projection: turns a conversation with tools into one that a text-only model can read.

    the client's system text, then the tool prompt
    the messages in order, with past calls and results as text
    turn instructions, which apply to this reply only

If tools are selected, further parameters follow the messages that they fit (`selection`).

The messages are read once, from first to last, and later messages never change the text of earlier ones. The prompt
without its turn instructions is therefore a prefix of the next turn's prompt. Messages that need no change keep their
`raw` field and are sent unchanged.

If `roles = "strict"`, the messages have the form that every chat template accepts: one system message, then alternating
user and assistant messages. If the model has no system role, they alternate from the start, and the first user message
begins with the tool prompt.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter, itemgetter

from attrs import evolve

import statemachine
from streamtool.core.bounded_cache import SharedList
from streamtool.core.conversation import (
    Conversation,
    MediaPart,
    Message,
    Part,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from streamtool.core.errors import RequestError
from streamtool.core.turns import Pairing, unanswered_calls
from streamtool.prompting.history import (
    arguments_text,
    calls_text,
    interrupted_text,
    media_of,
    orphan_text,
    part_text,
    result_text,
    strip_tags,
)
from streamtool.prompting.one_object import answer_text, is_one_object, join_text_and_calls
from streamtool.prompting.selection import Selection, ToolSearch, opening_text, selects_tools
from streamtool.prompting.tool_prompt import ToolPrompt, build_tool_prompt, build_tool_prompt_from_calls
from streamtool.prompting.transcripts import answer_id, find_transcript
from streamtool.prompting.turn_instructions import instructions_text, with_correction
from streamtool.protocols.completions.templates import TEMPLATES, role_lines
from streamtool.protocols.interfaces import Recall
from streamtool.settings import ModelSettings

_EXAMPLE_LENGTH = 400  # maximum length of arguments from the history that may be used as an example

_CALLS = attrgetter("calls")
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
    searches: Sequence[ToolSearch] = (),
) -> Conversation:
    """Return the conversation with tools, calls and results as text, for a model that is taught `format`.

    A conversation with neither tools nor tool history is returned unchanged, except for its volatile text.
    `correction` is added to the turn instructions of a further attempt; `continued` is the reply so far, which precedes
    the turn instructions as an assistant message. `recall` looks up how the model wrote past calls (`verbatim`).
    `searches` are the searches for tools in earlier attempts. All omissions and repairs are listed in `dropped`.

    Raises RequestError if the tool prompt exceeds the context or, unless `open_end` is set, if a call at the end lacks
    its result. If `history = "strict"`, also raises RequestError if any call lacks its result, or any result lacks its
    call.
    """
    if not conversation.tools and not conversation.has_tool_history:
        return with_correction(conversation, None) if conversation.volatile else conversation
    if not open_end:
        _require_results(conversation.messages)
    selection = None
    if model.prompt.select_tools and selects_tools(conversation, model):  # the first part saves a call
        selection = Selection(conversation, model, format)
    made = tool_prompt_for(conversation, model, format, selection)
    projector = _Projector(model, format, recall, selection, conversation.messages)
    for message in conversation.messages:
        projector.add(message)
    messages = _with_tool_prompt(_without_blanks(projector.close()), made.text)
    for search in searches:
        messages += _search_messages(search)
    if continued:
        messages.append(Message("assistant", (TextPart(continued),)))
    strict = model.prompt.roles == "strict" or not model.prompt.system_role
    if strict and (searches or not model.prompt.system_role or not _alternates(messages)):
        if searches or continued:  # they follow a message that may be blank because it was the last one
            messages = _without_blanks(messages)
        messages = _alternate_roles(messages, system_role=model.prompt.system_role)
    choice, options = conversation.choice, conversation.options
    if selection is not None:
        for search in searches:
            selection.note_search(search.found)
        if choice.names:
            _add_turn_instructions(messages, selection.named_text(choice.names))
    text = instructions_text(choice, correction, options.output, conversation.volatile)
    _add_turn_instructions(messages, text)
    notes = [] if made.tier == "full" else [f"tools shortened to {made.tier}"]
    if selection is not None:
        notes.append(f"parameters of {len(conversation.tools) - len(selection.first)} tools")
    return evolve(
        conversation,
        messages=tuple(messages),
        tools=(),
        choice=ToolChoice(),
        options=options if options.output is None else evolve(options, output=None),
        dropped=(*conversation.dropped, *notes, *projector.notes),
    )


def _require_results(messages: Sequence[Message]) -> None:
    missing = unanswered_calls(messages) if any(map(_CALLS, messages)) else ()
    if missing:
        names = ", ".join(call.id for call in missing)
        raise RequestError(
            f"the conversation ends without a result for {names}: send a result for each call",
            param="messages",
            code="missing_result",
        )


def tool_prompt_for(
    conversation: Conversation, model: ModelSettings, format: str, selection: Selection | None
) -> ToolPrompt:
    """Return the tool prompt of a conversation, with the parameters of the selected tools or, if `selection` is None,
    of all. Raises RequestError if it exceeds the context.
    """
    parallel = conversation.choice.parallel
    if conversation.tools:
        if selection is not None:
            return build_tool_prompt(
                conversation.tools, format, model, parallel=parallel, chosen=selection.first, search=selection.search
            )
        offered = conversation.raw.get("tools")
        if type(offered) is not SharedList or model.context is not None:
            return build_tool_prompt(conversation.tools, format, model, parallel=parallel)
        prompt = model.prompt
        key = ("tool prompt", format, prompt.schema, prompt.schema_budget, prompt.results.frame, parallel)
        known: tuple[tuple[Tool, ...], ToolPrompt] | None = offered.made.get(key)
        if known is None or known[0] is not conversation.tools:
            known = conversation.tools, build_tool_prompt(conversation.tools, format, model, parallel=parallel)
            offered.keep(key, known)
        return known[1]
    first: dict[str, statemachine.Call] = {}
    for message in conversation.messages:
        for call in message.calls:
            arguments = arguments_text(call)
            first.setdefault(
                call.name, statemachine.Call(call.name, arguments if len(arguments) <= _EXAMPLE_LENGTH else "{}")
            )
    return (
        build_tool_prompt_from_calls(list(first.values()), format, model, parallel=parallel)
        if first
        else ToolPrompt("", "full")
    )


def _search_messages(search: ToolSearch) -> tuple[Message, Message]:
    """Return the messages of a search for tools: the model's, and its result."""
    return Message("assistant", (TextPart(search.said),)), Message("user", (TextPart(search.result),))


def _without_blanks(messages: list[Message]) -> list[Message]:
    """Remove blank messages, which some upstreams reject; the last message is always kept."""
    return [
        message
        for message in messages[:-1]
        if (len(message.content) == 1 and type(part := message.content[0]) is TextPart and part.text.strip())
        or not _is_blank(message)
    ] + messages[-1:]


def _with_tool_prompt(messages: list[Message], text: str) -> list[Message]:
    """Append the tool prompt to the client's own system text, at the end of the last leading system message."""
    if not text:
        return messages
    leading = 0
    while leading < len(messages) and messages[leading].role == "system":
        leading += 1
    if leading == 0:
        return [Message("system", (TextPart(text),)), *messages]
    messages[leading - 1] = _with_text(messages[leading - 1], text)
    return messages


def _with_text(message: Message, text: str) -> Message:
    """Return the message with another paragraph appended."""
    content = _join_contents((message.content, (TextPart(text),)))
    return Message(message.role, content, message.calls, message.results, message.reasoning)


def _join_contents(contents: Iterable[Sequence[Part]]) -> tuple[Part, ...]:
    """Concatenate the parts. Where two text parts become adjacent, they are joined with an empty line between them."""
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


def _add_turn_instructions(messages: list[Message], text: str) -> None:
    """Append this text to the conversation as user text, after the last message."""
    if text and messages and messages[-1].role == "user":
        messages[-1] = _with_text(messages[-1], text)
    elif text:
        messages.append(Message("user", (TextPart(text),)))


def _alternates(messages: Sequence[Message]) -> bool:
    """Return whether the messages, after at most one system message, are by the user and the assistant in turns."""
    roles = [message.role for message in messages]
    turns = roles[roles[0] == "system" :]
    return len(roles) > 1 and turns == (["user", "assistant"] * len(turns))[: len(turns)]


def _alternate_roles(messages: Sequence[Message], *, system_role: bool) -> list[Message]:
    """Return messages with the same text in the form that every chat template accepts.

    That is, at most one system message, at the start, followed by alternating user and assistant messages, the first
    one from the user. None of them is empty, except for the last one if it is not joined with the one before. Only the
    last one of `messages` may be blank.
    """
    made: list[Message] = []
    joined: dict[int, list[tuple[Part, ...]]] = {}
    """The contents that are joined in a message, by its index in `made`."""
    leads = system_role
    """Whether all messages so far have been system messages."""
    before = ""
    """The role of the last message in `made`."""
    end = messages[-1] if messages else None
    for message in messages:
        role = message.role
        if role != "system":
            leads = False
        elif not leads:
            role = "user"
        if message is end and before in ("", role) and _is_blank(message):
            continue
        if role == before:
            joined.setdefault(len(made) - 1, [made[-1].content]).append(message.content)
            continue
        if role == "assistant" and before != "user":
            made.append(_BEGIN)
        made.append(message if role == message.role else evolve(message, role=role, raw=()))
        before = role
    for at, contents in joined.items():
        made[at] = evolve(made[at], content=_join_contents(contents), raw=())
    return made


class _Projector:
    """A projector that takes messages in order. It combines consecutive results into one message."""

    __slots__ = (
        "_calls",
        "_format",
        "_guard",
        "_opening",
        "_out",
        "_pairing",
        "_places",
        "_prompt",
        "_recall",
        "_results",
        "_selection",
        "_started",
        "_turn_instructions",
        "notes",
    )

    def __init__(
        self,
        model: ModelSettings,
        format: str,
        recall: Recall | None,
        selection: Selection | None,
        messages: Sequence[Message],
    ) -> None:
        self._prompt = model.prompt
        self._guard = role_lines(TEMPLATES[model.template]) if model.protocol == "completions" else None
        self._format = format
        self._recall = recall
        self._selection = selection
        self._opening = "" if selection is None else opening_text(messages)
        self._started = False
        """Whether the model has replied before."""
        self._out: list[Message] = []
        self._pairing = Pairing()
        self._calls: tuple[ToolCall, ...] = ()
        self._places: dict[int, int] = {}
        """The position of each call in `_calls`, by identity."""
        self._results: list[tuple[int, str, Sequence[MediaPart]]] = []
        self._turn_instructions: dict[int, str] = {}
        """Turn instructions of earlier replies, by the index of the reply's message."""
        self.notes: list[str] = []

    def add(self, message: Message) -> None:
        """Add the next message."""
        match message.role:
            case "system":
                if self._results:
                    self._flush(())
                self._out.append(message)
            case "assistant":
                if self._pairing.waiting:
                    self._interrupt()
                if self._results:
                    self._flush(())
                self._assistant(message)
            case "user":
                self._user(message)

    def close(self) -> list[Message]:
        """Return all projected messages."""
        if self._results:
            self._flush(())
        said = self._out if self._prompt.media else [_as_single_text(message) for message in self._out]
        if not self._turn_instructions:
            return said
        messages: list[Message] = []
        for place, message in enumerate(said):
            _add_turn_instructions(messages, self._turn_instructions.get(place, ""))
            messages.append(message)
        return messages

    def _assistant(self, message: Message) -> None:
        self._pairing.emit(message.calls)
        self._started = True
        self._calls = message.calls
        calls = message.calls
        self._places = {id(calls[0]): 0} if len(calls) == 1 else {id(call): at for at, call in enumerate(calls)}
        if message.calls:
            known = None if self._recall is None else find_transcript(message, self._format, self._recall)
            if known is not None:
                self._add_searches(known.searches)
                if known.tail:
                    self._turn_instructions[len(self._out)] = known.tail
                text = known.text
            else:
                text = join_text_and_calls(message.text, calls_text(message.calls, self._format), self._format)
            content = message.content
            if len(content) > 1 or (content and type(content[0]) is not TextPart):
                content = (*[part for part in content if isinstance(part, MediaPart)], TextPart(text))
            else:
                content = (TextPart(text),)
            self._out.append(Message("assistant", content, reasoning=message.reasoning))
            if self._selection is not None:
                self._selection.note_calls(message.calls)
        elif self._selection is not None and (searched := self._after_search(message)) is not None:
            self._out.append(searched)
        elif is_one_object(self._format) and message.text:
            self._out.append(evolve(message, content=(TextPart(answer_text(message.text, self._format)),), raw=()))
        else:
            self._out.append(message)

    def _add_searches(self, searches: Sequence[ToolSearch]) -> None:
        """Add the model's searches for tools before a reply."""
        for search in searches:
            self._out += _search_messages(search)
            if self._selection is not None:
                self._selection.note_search(search.found)

    def _after_search(self, message: Message) -> Message | None:
        """Add the searches before a reply without calls, and return the reply as the model wrote it. Return None if the
        model did not search.
        """
        if self._recall is None or not message.text:
            return None
        known = find_transcript(message, self._format, self._recall, answer_id(self._opening, message.text))
        if known is None:
            return None
        self._add_searches(known.searches)
        if known.tail:
            self._turn_instructions[len(self._out)] = known.tail
        return evolve(message, content=(TextPart(known.text),), raw=())

    def _further(self, content: tuple[Part, ...], *, request: bool) -> tuple[Part, ...]:
        """Return the content of a user message, followed by the parameters of the tools that the conversation needs
        from here on. `request` means that the content is the user's, and that the tool prompt does not consider it.
        """
        selection = self._selection
        assert selection is not None  # noqa: S101  the callers check it, which saves a call per message
        if request:
            selection.note_request("\n".join(part.text for part in content if isinstance(part, TextPart)))
        text = selection.further_text()
        return _join_contents((content, (TextPart(text),))) if text else content

    def _user(self, message: Message) -> None:
        for result in message.results:
            self._result(result)
        if message.results and not message.content:
            return
        if self._pairing.waiting:
            self._interrupt()
        content = self._stripped(message.content) if self._prompt.results.strip else message.content
        if message.results:
            self._flush(content)
            return
        if self._results:
            self._flush(())
        if self._selection is not None:
            content = self._further(content, request=self._started)
        if content == message.content:
            self._out.append(message)
        elif content:
            self._out.append(evolve(message, content=content, raw=()))

    def _result(self, result: ToolResult) -> None:
        call = self._pairing.answer(result)
        settings = self._prompt.results
        only_text = len(result.content) == 1 and type(result.content[0]) is TextPart
        media = () if only_text or not self._prompt.media else media_of(result, settings)
        if call is None:
            self._note(f"result {result.id} has no call")
            self._results.append((len(self._calls), orphan_text(result, settings, self._guard), media))
            return
        place = self._places.get(id(call), len(self._calls))
        self._results.append((place, result_text(result, call.name, settings, self._guard), media))

    def _interrupt(self) -> None:
        """Mark open calls as interrupted, since another message precedes their results."""
        for call in self._pairing.interrupt():
            self._note(f"call {call.id} has no result: interrupted")
            self._results.append((self._places[id(call)], interrupted_text(call, self._prompt.results), ()))

    def _flush(self, content: Sequence[Part]) -> None:
        """Write the collected results in the order of their calls, followed by `content`, as one user message."""
        if self._results:
            text, media = self._results[0][1:]
            if len(self._results) > 1:
                self._results.sort(key=itemgetter(0))
                text = "\n\n".join([entry[1] for entry in self._results])
                media = [part for entry in self._results for part in entry[2]]
            content = _join_contents(((TextPart(text), *media), content)) if media or content else (TextPart(text),)
            self._results = []
            if self._selection is not None:
                content = self._further(tuple(content), request=False)
        if content:
            self._out.append(Message("user", tuple(content)))

    def _stripped(self, content: tuple[Part, ...]) -> tuple[Part, ...]:
        tags = self._prompt.results.strip
        if not tags:
            return content
        texts = [TextPart(strip_tags(part.text, tags)) if isinstance(part, TextPart) else part for part in content]
        return tuple(now for now, was in zip(texts, content, strict=True) if now == was or not _is_empty(now))

    def _note(self, sentence: str) -> None:
        if self._prompt.history == "strict":
            raise RequestError(sentence, param="messages", code="broken_history")
        self.notes.append(sentence)


def _is_blank(message: Message) -> bool:
    return not message.reasoning and all(_is_empty(part) for part in message.content)


def _as_single_text(message: Message) -> Message:
    """Return the message with all of its content in one text part."""
    return evolve(message, content=(TextPart("\n".join(map(part_text, message.content))),), raw=())


def _is_empty(part: Part) -> bool:
    return isinstance(part, TextPart) and not part.text.strip()
