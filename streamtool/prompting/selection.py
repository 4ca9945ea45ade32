"""Selection: of many tools, the prompt shows the parameters of those that fit the conversation (`select_tools`).

    the tool prompt       every tool's name and first sentence; the parameters of the N tools that fit the first user
                          messages best, and of `tool_search`
    a later user message  the parameters of further tools that fit it
    a search              the model's call of `tool_search`, and the parameters of the tools found
    a result              the parameters of the tool that was called, if they have not been shown before

Each part depends on the messages up to it alone, so a prompt and its reply are a prefix of the next prompt. Searches
are not in the client's history: they are stored with the reply's transcript. A tool may be called before its parameters
have been shown.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from attrs import frozen

from streamtool.core.bounded_cache import LruCache, SharedList
from streamtool.core.conversation import Conversation, Message, Tool, ToolCall
from streamtool.core.json_value import Json
from streamtool.prompting.history import calls_text, frame_content
from streamtool.prompting.one_object import join_text_and_calls
from streamtool.prompting.ranking import ToolIndex
from streamtool.prompting.tool_prompt import list_tools, pack_tools
from streamtool.settings import ModelSettings

MAX_SEARCHES: Final = 3
"""Maximum number of searches in one exchange."""
SEARCH_SCHEMA: Final[Mapping[str, Json]] = {
    "type": "object",
    "properties": {"query": {"type": "string"}},
    "required": ["query"],
}
_NAMES: Final = ("tool_search", "find_tools")
"""Names of the tool for searches. The second one is for clients that offer a tool with the first one."""
_FOUND: Final = 5
"""Maximum number of tools that a search finds."""
_FURTHER: Final = 3
"""Maximum number of tools whose parameters are shown with a later user message."""
_FURTHER_HEADING: Final = "The parameters of further tools:"
_NOTHING: Final = "No tool has these words. Search for others, call a tool of the list, or answer without tools."
_KEY: Final = "tool index"

_indexes = LruCache[ToolIndex](4 * 1024 * 1024)
"""Indexes by the tools as JSON, whose size is their weight."""


@frozen
class ToolSearch:
    """A search that the model has made, as the next prompts show it."""

    said: str
    """The model's message: its text, and the call."""
    result: str
    """The framed result."""
    found: tuple[str, ...]
    """The names of the tools found."""
    shown: str = ""
    """The text of the model's message that the client has received."""


def selects_tools(conversation: Conversation, model: ModelSettings) -> bool:
    """Return whether the prompt shows the parameters of only some tools. With several choices it shows all, because a
    search would repeat the other choices too.
    """
    most = model.prompt.select_tools
    return 0 < most < len(conversation.tools) and conversation.options.n == 1


def search_name(conversation: Conversation) -> str:
    """Return the name of the tool that searches for tools. The client offers no tool with this name."""
    taken = {tool.name for tool in conversation.tools}
    name, number = next((name for name in _NAMES if name not in taken), _NAMES[1]), 1
    while name in taken:
        number += 1
        name = f"{_NAMES[1]}_{number}"
    return name


def search_query(arguments: str) -> str:
    """Return the query in the arguments of a search, which may have any form."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return arguments
    if isinstance(value, dict):
        value = value.get("query", list(value.values()))
    return value if isinstance(value, str) else " ".join(filter(None, _strings(value)))


def _strings(value: Json) -> Iterable[str]:
    if isinstance(value, list):
        return [item for item in value if isinstance(item, str)]
    return ()


def opening_text(messages: Iterable[Message]) -> str:
    """Return the text of the user's messages before the first reply."""
    texts = []
    for message in messages:
        if message.role == "assistant":
            break
        if message.role == "user":
            texts.append(message.text)
    return "\n".join(texts)


class Selection:
    """The tools of one conversation, and those whose parameters its prompt has shown so far."""

    __slots__ = ("_format", "_index", "_model", "_pending", "_shown", "_tools", "first", "search")

    def __init__(self, conversation: Conversation, model: ModelSettings, format: str) -> None:
        self._tools = conversation.tools
        self._model = model
        self._format = format
        self._index = _index_of(conversation)
        best = self._index.rank(opening_text(conversation.messages))
        chosen = dict.fromkeys((*best, *range(len(self._tools))))
        self.first = tuple(self._tools[place] for place in list(chosen)[: model.prompt.select_tools])
        """The tools whose parameters the tool prompt shows, the best one first."""
        name = search_name(conversation)
        self.search = Tool(name, "Find tools by words of the task, and show their parameters.", SEARCH_SCHEMA)
        self._shown = {tool.name for tool in self.first}
        self._pending: dict[str, Tool] = {}

    def find(self, query: str, said: str, shown: str, number: int) -> ToolSearch:
        """Search for tools. `said` is the text before the model's call, and `shown` the part of it that the client has
        received. Searches are numbered from 1.
        """
        places = self._index.rank(query)[:_FOUND]
        found = [self._tools[place] for place in places]
        content = list_tools(found, self._format, self._model) if found else _NOTHING
        arguments = msgspec.json.encode({"query": query.encode("utf-8", "replace").decode()}).decode()
        call = ToolCall(f"search_{number}", self.search.name, arguments)
        return ToolSearch(
            join_text_and_calls(said.strip(), calls_text([call], self._format), self._format),
            frame_content(content, call.name, call.id, self._model.prompt.results.frame),
            tuple(tool.name for tool in found),
            shown,
        )

    def note_search(self, found: Iterable[str]) -> None:
        """Note that the prompt shows a search that found these tools."""
        self._shown.update(found)

    def note_calls(self, calls: Sequence[ToolCall]) -> None:
        """Note that the model has called these tools."""
        called = {call.name for call in calls} - self._shown
        if called:
            self._pending |= {tool.name: tool for tool in self._tools if tool.name in called}

    def note_request(self, text: str) -> None:
        """Note a further message of the user."""
        for place in self._index.rank(text)[:_FURTHER]:
            tool = self._tools[place]
            if tool.name not in self._shown:
                self._pending[tool.name] = tool

    def further_text(self) -> str:
        """Return the text that shows the parameters of the tools noted since the last message, or an empty string."""
        if not self._pending:
            return ""
        found = [tool for tool in self._pending.values() if tool.name not in self._shown]
        self._pending.clear()
        self._shown.update(tool.name for tool in found)
        return self._text(found)

    def named_text(self, names: Sequence[str]) -> str:
        """Return the text that shows the parameters of the tools that the tool choice names, unless there are many, or
        an empty string if they have been shown.
        """
        missing = set(names) - self._shown if len(names) <= len(self.first) else set()
        return self._text([tool for tool in self._tools if tool.name in missing])

    def _text(self, tools: Sequence[Tool]) -> str:
        return f"{_FURTHER_HEADING}\n\n{list_tools(tools, self._format, self._model)}" if tools else ""


def _index_of(conversation: Conversation) -> ToolIndex:
    """Return the index of the conversation's tools."""
    tools, offered = conversation.tools, conversation.raw.get("tools")
    shared = offered if type(offered) is SharedList else None
    known: tuple[tuple[Tool, ...], ToolIndex] | None = None if shared is None else shared.made.get(_KEY)
    if known is not None and known[0] is tools:
        return known[1]
    key = pack_tools(tools)
    index = _indexes.get(key)
    if index is None:
        index = ToolIndex(tools)
        _indexes.put(key, index, len(key))
    if shared is not None:
        shared.keep(_KEY, (tools, index))
    return index
