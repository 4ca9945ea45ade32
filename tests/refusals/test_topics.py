"""Denials of what an offered tool does: the words of the tools, the corpus, pieces of any size, whole exchanges."""

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dialects import events
from support.refusal_corpus import NEGATIVES, ROOT

from streamtool.core.conversation import Tool
from streamtool.exchange.record import Record
from streamtool.middleware import ToolMiddleware
from streamtool.refusals import OpeningWatch, Phrases, PhrasesError, Topics
from streamtool.refusals.opening import HELD
from streamtool.refusals.topics import stem, topics_of
from streamtool.testing import ScriptedUpstream, stream_asgi
from streamtool.testing import text as script
from tools import refusals
from tools.refusals import Reply

REPLIES = [*refusals.replies("denials"), *refusals.replies("answers")]
PAGE = " ".join((ROOT / "docs" / "when-the-model-does-not-call.md").read_text(encoding="utf-8").split())


def tool(name: str, description: str = "", *parameters: str) -> Tool:
    return Tool(name, description, {"type": "object", "properties": {key: {} for key in parameters}})


WEATHER = tool("get_weather", "Get the current weather for a city.", "city", "unit")
STOCKS = tool("get_stock_price", "Look up the latest price of a stock.", "symbol")


def denies(text: str, *tools: Tool, phrases: Phrases | None = None) -> str | None:
    opening = OpeningWatch(phrases, Topics(tools), environment=False)
    shown = opening.feed(text) + opening.close()
    assert shown == ("" if opening.found else text)
    return opening.found


# --- the corpus ------------------------------------------------------------------------------------------------------


def test_the_corpus_is_large_and_has_nine_languages():
    denials, answers = refusals.replies("denials"), refusals.replies("answers")
    assert len(denials) >= 300
    assert len(answers) >= 1000
    assert len({(reply.text, reply.tools) for reply in REPLIES}) == len(REPLIES)
    assert len({reply.language for reply in denials}) == len({reply.language for reply in answers}) == 9


@pytest.mark.parametrize("half", refusals.HALVES)
def test_most_denials_are_found_and_hardly_any_answer_is_taken_for_one(half: str):
    counts = refusals.count()
    found, denials = counts[half, "denials", "all"]
    wrong, answers = counts[half, "answers", "all"]
    assert found / denials >= 0.9
    assert wrong <= 1
    assert answers >= 500


def test_the_figures_in_the_docs_are_current():
    counts = refusals.count()
    found, denials = counts["measuring", "denials", "all"]
    wrong, answers = counts["measuring", "answers", "all"]
    second, of = counts["measuring, second", "denials", "all"]
    assert f"{found} of {denials} denials are found, and {wrong} of {answers} answers are mistaken for one" in PAGE
    assert f"in other words and for other tools, {second} of {of} are found" in PAGE
    varied, wrong = (counts[refusals.VARIED, kind, "all"] for kind in refusals.KINDS)
    assert "the wording widely, only {} of {} ({} of {} answers)".format(*varied, *wrong) in PAGE
    sizes = [len(refusals.replies(kind)) for kind in refusals.KINDS]
    assert "{:,} denials and {:,} similar answers".format(*sizes) in PAGE


def test_the_command_prints_a_row_for_each_language():
    rows = list(refusals.rows())
    assert len(rows) == 1 + 5 * 10
    assert re.fullmatch(
        r"measuring +en +\d+ of \d+ +\d+ of \d+", next(row for row in rows if row.startswith("measuring"))
    )


def test_answers_of_coding_agents_are_no_denials_of_their_tools():
    tools = WEATHER, tool("read_file", "Reads a file.", "path"), tool("bash", "Runs a command.")
    assert [text for text in NEGATIVES if denies(text, *tools)] == []


# --- the words of the tools ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "I don't have access to weather data.",
        "I don't have access to real-time weather data.",
        "I don't have access to the get_weather tool.",
        "I don't have access to the `get_weather` tool.",
        "I don't have access to real-time information.",
        "As an AI language model I can't browse the internet or check the weather.",
        "Je n'ai pas accès aux données météo.",
        "我无法获取天气数据。",
        "天気情報にアクセスできません。",
    ],
)
def test_a_denial_depends_on_the_offered_tools(text: str):
    assert denies(text, WEATHER) == "topic denied"
    assert denies(text, STOCKS, WEATHER) == "topic denied"
    assert denies(text, tool("translate_text", "Translate text.", "text", "language")) is None
    assert denies(text) is None


def test_words_of_name_description_and_parameters_take_part():
    text = "I don't have access to tide tables."
    assert denies(text, tool("get_tides")) is not None
    assert denies(text, tool("lookup", "Return the tides at a harbor.")) is not None
    assert denies(text, tool("lookup", "", "tideStation")) is not None
    assert denies(text, tool("lookup", "Return data.", "harbor")) is None


def test_the_words_of_a_tool_in_another_language():
    assert denies("Ich habe keinen Zugriff auf Wetterdaten.", tool("wetter_abfragen")) is not None
    assert denies("我无法查询彩票。", tool("query", "查询彩票")) is not None
    assert denies("我无法查询彩票。", tool("query", "查询城市")) is None


@pytest.mark.parametrize(
    "text",
    [
        "I don't have access to your location, so please tell me the city.",
        "I don't have your order number. Could you give it to me?",
        "I can't check the order: the server answered 500.",
        "I can't check the order because it was deleted.",
        "I can't check the order without your name.",
        "I can't check the order directly, but I can use get_order.",
        "I can't check the order. Let me try the tool.",
    ],
)
def test_missing_information_findings_and_retractions_are_no_denials(text: str):
    by_city = tool("get_weather_by_location", "Weather in a given location.", "location")
    assert denies(text, by_city, tool("get_order", "Look up an order.", "order_number")) is None


def test_simple_endings_do_not_matter():
    for words in ("price prices", "city cities", "schedule scheduled scheduling", "deploy deployment deployments"):
        assert len({stem(word) for word in words.split()}) == 1, words
    assert stem("news") == "news"
    assert stem("use") == "use"


def test_generic_words_are_no_topics():
    found = topics_of("get_data", "Return the current information about a given item.", ("id", "location", "limit"))
    assert found <= {"getdat"}


# --- the notation ----------------------------------------------------------------------------------------------------


def phrases(phrase: str, *, spaces: bool = True) -> Phrases:
    return Phrases.parse(f"[x]\nspaces = {str(spaces).lower()}\n[x.denied]\ntopic = ['''{phrase}''']")


def test_a_topic_is_a_whole_word():
    own = phrases("no {topic} .")
    assert denies("No weather.", WEATHER, phrases=own)
    assert denies("No weather", WEATHER, phrases=own)
    assert denies("No l'agenda.", tool("agenda"), phrases=own)
    assert not denies("No weatherman.", WEATHER, phrases=own)
    assert not denies("No sweater.", WEATHER, phrases=own)
    assert not denies("No weather today.", WEATHER, phrases=own)
    assert not denies("No " + "weather" * 20 + ".", WEATHER, phrases=own)


def test_a_condition_on_the_preceding_word():
    own = phrases("no (weather|stock) {offered} [data] .")
    assert denies("No weather data.", WEATHER, phrases=own)
    assert not denies("No stock data.", WEATHER, phrases=own)
    with pytest.raises(PhrasesError, match="must follow a word"):
        phrases("{offered} data")


def test_without_spaces_a_topic_ends_within_ten_characters():
    own = phrases("无 {topic} 数", spaces=False)
    assert denies("无任何天气数", WEATHER, phrases=own)
    assert not denies("无" + "任" * 9 + "天气数", WEATHER, phrases=own)


# --- denials in other words ---------------------------------------------------------------------------------------------

OTHER_WORDS = {
    "en": "Hi there! I'm a language model, which means I have no live access to weather services.",
    "en, the topic first": "Your weather data isn't accessible to me here.",
    "en, beyond": "Checking the forecast is beyond my capabilities.",
    "de": "Als Sprachmodell bin ich nicht mit dem Internet verbunden und kann das Wetter nicht prüfen.",
    "fr": "Il m'est impossible de consulter la météo actuelle.",
    "es": "No me es posible consultar el clima en este momento.",
    "pt": "Não disponho de dados meteorológicos em tempo real.",
    "it": "Non mi è possibile consultare il meteo in questo momento, mi dispiace.",
    "ru": "К сожалению, у меня нет возможности посмотреть текущую погоду.",
    "zh": "我没有联网功能，所以查不到今天的天气。",
    "ja": "申し訳ございませんが、リアルタイムの天気情報にはアクセスできません。",
}


@pytest.mark.parametrize("language", OTHER_WORDS)
def test_a_denial_in_other_words_is_found(language: str):
    assert denies(OTHER_WORDS[language], WEATHER) == "topic denied"
    assert denies(OTHER_WORDS[language], tool("play_song", "Play a song.", "title")) is None


@pytest.mark.parametrize(
    "text",
    [
        "I can't access the weather service because it returned an error.",
        "I can't check the weather until I know which Springfield you mean.",
        "I don't have access to Anna's weather station, because she has not shared it.",
        "I have no access to the weather of 1850.",
        "I can't tell from the live data whether it will rain.",
        "I don't have access to live stock quotes, but the weather is fine.",
        "I can check the weather, but not the traffic.",
        "我无法获取天气，因为服务返回了错误。",
    ],
)
def test_an_answer_that_combines_the_same_words_is_no_denial(text: str):
    assert denies(text, WEATHER) is None


# --- pieces and buffering --------------------------------------------------------------------------------------------


def outcome(reply: Reply, sizes: list[int]) -> tuple[Any, ...]:
    opening, shown, at = refusals.watch(reply.tools), "", 0
    for size in itertools.cycle(sizes):
        if at >= len(reply.text):
            break
        shown += opening.feed(reply.text[at : at + size])
        at += size
        assert opening.held <= HELD
    return opening.found, opening.phrase, shown + opening.close()


@given(st.sampled_from(REPLIES), st.lists(st.integers(1, 12), min_size=1, max_size=8))
@settings(max_examples=75)
def test_the_result_does_not_depend_on_the_split(reply: Reply, sizes: list[int]):
    assert outcome(reply, sizes) == outcome(reply, [len(reply.text)])


def test_a_sentence_about_something_else_is_released_at_the_first_word_that_rules_it_out():
    opening = OpeningWatch(None, Topics([WEATHER]))
    assert opening.feed("I don't have access to") == ""
    assert opening.feed(" the minutes ") == ""
    assert opening.feed("of ") == "I don't have access to the minutes of "


@pytest.mark.parametrize(
    "text", ["The weather", "My guess", "It's important", "Of course", "天才", "これは", "Das Wetter"]
)
def test_an_ordinary_answer_is_released_at_once(text: str):
    opening = OpeningWatch(None, Topics([WEATHER]))
    opening.feed(text)
    assert opening.decided


# --- exchanges -------------------------------------------------------------------------------------------------------

CALL = script('<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>')
DENIED = script("I'm sorry, but I don't have access to real-time weather data. Try a website.")


def body(*messages: dict[str, Any]) -> bytes:
    function = {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
    asked = {"role": "user", "content": "How is the weather in Oslo?"}
    tools = [{"type": "function", "function": function}]
    return json.dumps({"model": "m", "messages": [asked, *messages], "tools": tools, "stream": True}).encode()


def said(data: bytes) -> str:
    return "".join(
        event["choices"][0]["delta"].get("content") or ""
        for event in events(data)
        if isinstance(event, dict) and event["choices"]
    )


@pytest.mark.anyio
async def test_a_model_that_denies_what_a_tool_does_is_asked_again():
    records: list[Record] = []
    app = ToolMiddleware(ScriptedUpstream(DENIED, CALL), on_exchange=records.append)
    async with stream_asgi(app, body=body()) as reply:
        data = await reply.body()
    assert said(data) == ""
    assert [(record.calls, record.attempts) for record in records] == [(1, ("environment denied",))]


@pytest.mark.anyio
async def test_the_same_words_after_a_result_are_an_answer():
    function = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    result = {"role": "tool", "tool_call_id": "c", "content": "error 503"}
    async with stream_asgi(ToolMiddleware(ScriptedUpstream(DENIED)), body=body(call, result)) as reply:
        assert said(await reply.body()).startswith("I'm sorry, but I don't have access")
