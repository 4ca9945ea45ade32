"""llama-cpp-python with our chat handler: scripted replies, and a random model that a grammar constrains to calls."""

import importlib
import json
import socket
import threading

import pytest
from attrs import evolve

pytest.importorskip("llama_cpp", exc_type=ImportError)
pytestmark = pytest.mark.engines

import uvicorn  # noqa: E402
from llama_cpp import Llama, LlamaGrammar  # noqa: E402
from llama_cpp.llama_chat_format import (  # noqa: E402
    ChatFormatterResponse,
    chat_formatter_to_chat_completion_handler,
    get_chat_completion_handler,
)
from openai import OpenAI  # noqa: E402
from openai.lib.streaming.chat import ChatCompletionStreamState  # noqa: E402
from openai.types.chat import ChatCompletion, ChatCompletionChunk  # noqa: E402
from support.engine_cases import CASES, Outcome, alone, openai_tools, pieces_of  # noqa: E402
from support.gguf_model import write_model  # noqa: E402

from streamtool.adapters import llama_cpp  # noqa: E402
from streamtool.core.conversation import Tool  # noqa: E402
from streamtool.forcing import call_grammar  # noqa: E402

MESSAGES = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
HELD = ("tool_call", "qwen3_coder", "glm45", "invoke", "labelled")


class Scripted:
    """A scripted stand-in for a model: returns completions in the same chunks as `Llama`."""

    verbose = False
    _chat_handlers: dict = {}  # noqa: RUF012

    def __init__(self, pieces):
        self.pieces = pieces

    def tokenize(self, *_, **__):
        return []

    def create_completion(self, *, stream, **_):
        base = {"id": "cmpl-1", "object": "text_completion", "created": 0, "model": "m"}
        if not stream:
            choice = {"text": "".join(self.pieces), "index": 0, "logprobs": None, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            return base | {"choices": [choice], "usage": usage}
        ends = [*((piece, None) for piece in self.pieces), ("", "stop")]
        return (
            base | {"choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": reason}]}
            for text, reason in ends
        )


inner = chat_formatter_to_chat_completion_handler(lambda **_: ChatFormatterResponse(prompt=""))


def answered(reply, *, stream):
    """Return the choice as the official SDK reads it."""
    if not stream:
        return ChatCompletion.model_validate(reply).choices[0]
    state = ChatCompletionStreamState()
    for chunk in reply:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    return state.current_completion_snapshot.choices[0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_reply_equals_the_result_of_the_parser(case, stream):
    expected = alone(case)
    reply = llama_cpp.reading(inner)(
        llama=Scripted(pieces_of(case)), messages=MESSAGES, tools=openai_tools(case), stream=stream
    )
    choice = answered(reply, stream=stream)
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    assert Outcome(choice.message.content or "", calls) == evolve(expected, reasoning="")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "noise.gguf"
    write_model(path)
    return str(path)


@pytest.fixture(scope="module")
def model(file):
    return Llama(file, n_ctx=4096, chat_format="streamtool", verbose=False)


@pytest.fixture(scope="module")
def url(file):
    """Yield the URL of llama-cpp-python's own server."""
    app = pytest.importorskip("llama_cpp.server.app", exc_type=ImportError)
    settings = importlib.import_module("llama_cpp.server.settings").Settings
    chosen = settings(model=file, chat_format="streamtool", n_ctx=4096, verbose=False)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app.create_app(settings=chosen), log_level="error"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    server.should_exit = True
    thread.join(20)


def rules_for(form):
    rules, _ = call_grammar((Tool("ping", "", SCHEMA),), form, forced=True, parallel=False, lazy=False)
    return rules


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", HELD)
def test_a_model_constrained_to_a_call(model, form, stream):
    held = LlamaGrammar.from_string(rules_for(form), verbose=False)
    tools = [{"type": "function", "function": {"name": "ping", "parameters": SCHEMA}}]
    reply = model.create_chat_completion(MESSAGES, tools=tools, grammar=held, max_tokens=400, stream=stream)
    choice = answered(reply, stream=stream)
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content
    assert call.function.name == "ping"
    assert isinstance(json.loads(call.function.arguments)["n"], int)


@pytest.mark.parametrize("form", HELD)
def test_its_server_streams_calls_to_the_official_client(url, form):
    tools = [{"type": "function", "function": {"name": "ping", "parameters": SCHEMA}}]
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        chunks = client.chat.completions.create(
            model="noise", messages=MESSAGES, tools=tools, stream=True, max_tokens=400,
            extra_body={"grammar": rules_for(form)},
        )  # fmt: skip
        choice = answered((chunk.model_dump(exclude_unset=True) for chunk in chunks), stream=True)
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "ping")
    assert isinstance(json.loads(call.function.arguments)["n"], int)


def test_a_named_tool_is_left_to_the_wrapped_handler():
    tools = [{"type": "function", "function": {"name": "ping", "parameters": SCHEMA}}]
    choice = {"type": "function", "function": {"name": "ping"}}
    model = Scripted(['{"n": 1}'])
    reply = llama_cpp.reading(inner)(llama=model, messages=MESSAGES, tools=tools, tool_choice=choice, stream=False)
    (call,) = reply["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "ping", "arguments": '{"n": 1}'}


def test_the_handler_is_registered():
    assert callable(get_chat_completion_handler("streamtool"))
