"""Selection: of many tools, the prompt shows the parameters of those that fit the conversation."""

import itertools
from typing import Any

import pytest
from attrs import evolve
from support.sweeps import each

from streamtool.core.conversation import (
    Conversation,
    Message,
    Options,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from streamtool.prompting import Selection, project
from streamtool.prompting.ranking import ToolIndex, words_of
from streamtool.prompting.selection import search_name, search_query
from streamtool.sample import learn
from streamtool.settings import Settings


def tool(name: str, description: str, **parameters: str) -> Tool:
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    return Tool(name, description, {"type": "object", "properties": properties, "required": [*parameters]})


TOOLS = (
    tool("get_weather", "Get the weather of a city. It is current.", city="Name of the city"),
    tool("sendEmail", "Send an email to somebody.", to="Address", text="The message"),
    tool("book_flight", "Book a flight between two airports.", origin="Departure", target="Destination"),
    tool("list_invoices", "List all invoices of a customer.", customer="Number of the customer"),
    tool("convert", "Convert an amount of money into another currency.", amount="Amount", currency="ISO code"),
    tool("play_song", "Play a song.", title="Title of the song"),
)
MODEL = Settings(select_tools=2).for_model("m")


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def asked(*messages: Message, **fields: Any) -> Conversation:
    return Conversation("chat", "m", messages, tools=TOOLS, **fields)


def prompt(conversation: Conversation, format: str = "tool_call", **settings: Any) -> list[str]:
    model = evolve(MODEL, prompt=evolve(MODEL.prompt, **settings))
    return [message.text for message in project(conversation, model, format).messages]


@pytest.mark.parametrize(
    ("text", "best"),
    [
        ("What is the weather in Turin?", "get_weather"),
        ("please write an e-mail to Ann", "sendEmail"),
        ("Booking of flights from Rome", "book_flight"),
        ("show the invoice", "list_invoices"),
        ("How many euros is that in another CURRENCY?", "convert"),
        ("destination", "book_flight"),
    ],
)
def test_the_tool_that_fits_is_ranked_first(text: str, best: str):
    assert TOOLS[ToolIndex(TOOLS).rank(text)[0]].name == best


def test_languages_without_spaces_are_compared_in_pairs_of_characters():
    tools = [tool("a", "获取城市的天气预报"), tool("b", "发送电子邮件")]
    assert ToolIndex(tools).rank("都灵的天气怎么样?")[0] == 0
    assert ToolIndex(tools).rank("写一封邮件") == (1,)


def test_a_text_without_words_of_any_tool_ranks_none():
    assert ToolIndex(TOOLS).rank("Xyzzy!") == ()
    assert ToolIndex([Tool("")]).rank("") == ()


def test_a_long_text_is_ranked_by_its_beginning_and_its_end():
    index = ToolIndex(TOOLS)
    assert index.rank(f"Play a song. {'zz ' * 100_000}")[0] == index.rank(f"{'zz ' * 100_000} Play a song.")[0] == 5


def test_identifiers_and_endings_are_words():
    assert list(words_of("getCities list_invoices HTTPServer v2")) == [
        "get", "citi", "list", "invoic", "httpserver", "v2",
    ]  # fmt: skip


def test_the_prompt_names_all_tools_and_shows_parameters_of_the_best():
    system, _ = prompt(asked(user("Play a song, then convert money.")))
    listed = system.partition("## The tools\n\n")[2].partition("\n\n## Example")[0]
    assert listed == (
        "All tools, without their parameters:\n\n"
        "get_weather: Get the weather of a city.\n"
        "sendEmail: Send an email to somebody.\n"
        "book_flight: Book a flight between two airports.\n"
        "list_invoices: List all invoices of a customer.\n"
        "convert: Convert an amount of money into another currency.\n"
        "play_song: Play a song.\n\n"
        "The parameters of some tools follow. Before you call any other, call `tool_search` to see its parameters.\n\n"
        "`?` marks an optional parameter, `=` its default.\n\n"
        "play_song(\n title: string // Title of the song\n)\n Play a song.\n"
        "convert(\n amount: string // Amount\n currency: string // ISO code\n)\n"
        " Convert an amount of money into another currency.\n"
        "tool_search(query: string)\n Find tools by words of the task, and show their parameters."
    )
    assert '"play_song"' in system.partition("## Example")[2]


@each("style", ["compact", "json", "markdown"])
def test_the_sample_reads_a_prompt_with_selected_tools(style: str):
    system, _ = prompt(asked(user("Play a song.")), schema=style)
    lesson = learn(system)
    assert lesson is not None
    offers = {offer.name: [parameter.name for parameter in offer.parameters] for offer in lesson.offers}
    assert offers["play_song"] == ["title"]
    assert offers["tool_search"] == ["query"]
    assert offers.get("sendEmail", []) == []


def test_few_tools_and_several_choices_are_shown_in_full():
    for conversation, settings in (
        (asked(user("Play a song.")), {"select_tools": 6}),
        (asked(user("Play a song."), options=Options(n=2)), {}),
        (asked(user("Play a song.")), {"select_tools": 0}),
    ):
        system, _ = prompt(conversation, **settings)
        assert "tool_search" not in system
        assert system.count("// ISO code") == 1
    assert "tool_search" in prompt(asked(user("Play a song.")), select_tools=5)[0]


def test_a_budget_shortens_the_parameters_but_not_the_names():
    (whole, _), (short, _) = (prompt(asked(user("Play a song.")), schema_budget=budget) for budget in (None, 1))
    assert "// Title of the song" in whole
    assert "// Title of the song" not in short
    assert "play_song(title: string)\n Play a song." in short
    assert "list_invoices: List all invoices of a customer." in short


def test_the_names_do_not_depend_on_the_conversation():
    one, other = (prompt(asked(user(text)))[0] for text in ("Play a song.", "Book a flight."))
    names = "play_song: Play a song.\n\n"
    assert one.partition(names)[0] == other.partition(names)[0]
    assert one != other


def call(name: str, id: str) -> Message:
    return Message("assistant", (), (ToolCall(id, name, "{}"),))


def result(id: str) -> Message:
    return Message("user", results=(ToolResult(id, (TextPart("ok"),)),))


def test_each_prompt_begins_with_the_one_before():
    messages = (
        user("Play a song."),
        call("play_song", "1"),
        result("1"),
        Message("assistant", (TextPart("Played."),)),
        user("Now list the invoices of customer 5."),
        call("list_invoices", "2"),
        result("2"),
        call("sendEmail", "3"),  # called although its parameters were not shown
        result("3"),
        call("sendEmail", "4"),
        result("4"),
        Message("assistant", (TextPart("Done."),)),
        user("Now list the invoices of customer 6."),
    )
    ends = [i for i, message in enumerate(messages, 1) if message.role == "user"]
    prompts = [prompt(asked(*messages[:end])) for end in ends]
    for now, later in itertools.pairwise(prompts):
        assert later[: len(now)] == now
    added = {i: text for i, text in enumerate(prompts[-1]) if i and "// " in text}
    assert list(added) == [5, 9]
    assert added[5].startswith(
        "Now list the invoices of customer 5.\n\nThe parameters of further tools:\n\nlist_invoices("
    )
    assert added[9].count("sendEmail(") == 1


def test_several_messages_before_the_first_reply_are_one_request():
    system, *others = prompt(asked(user("<context>Rome</context>"), user("Play a song.")))
    assert "// Title of the song" in system
    assert "further" not in "".join(others)


def test_a_demanded_tool_is_shown_in_the_turn_instructions():
    *_, last = prompt(asked(user("Play a song."), choice=ToolChoice("required", ("sendEmail",))))
    assert last.index("sendEmail(\n") < last.index("write one call of the tool `sendEmail`")
    assert "further" not in prompt(asked(user("Play a song."), choice=ToolChoice("required", ("play_song",))))[-1]


def test_a_search_finds_tools_with_their_parameters():
    selection = Selection(asked(user("Play a song.")), MODEL, "tool_call")
    found = selection.find("email invoice", "Let me see.", "Let me see.", 1)
    assert found.said == (
        'Let me see.\n<tool_call>\n{"name": "tool_search", "arguments": {"query":"email invoice"}}\n</tool_call>'
    )
    assert set(found.found) == {"sendEmail", "list_invoices"}
    assert found.result.startswith('<tool_response name="tool_search">\n')
    assert "// Number of the customer" in found.result
    assert "No tool has these words." in selection.find("xyzzy \ud800", "", "", 2).result


def test_the_search_has_a_name_of_its_own():
    conversation = asked(user("hi"))
    for name in ("tool_search", "find_tools", "find_tools_2"):
        assert search_name(conversation) == name
        conversation = evolve(conversation, tools=(*conversation.tools, Tool(name)))


@pytest.mark.parametrize(
    ("arguments", "query"),
    [
        ('{"query": "send mail"}', "send mail"),
        ('{"q": "send mail"}', "send mail"),
        ('{"query": ["send", "mail", 5]}', "send mail"),
        ('"send mail"', "send mail"),
        ("send mail", "send mail"),
        ("{}", ""),
        ("5", ""),
        ("[" * 10_000, "[" * 10_000),
    ],
)
def test_a_query_has_any_form(arguments: str, query: str):
    assert search_query(arguments) == query
