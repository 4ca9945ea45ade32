"""The LiteLLM provider, through its own `completion` and `acompletion`, with real servers on loopback."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.servers import ROOT, uvicorn_server

from streamtool.sample import Sample
from streamtool.testing import Script, ScriptedUpstream, status, text

pytestmark = pytest.mark.skipif(find_spec("litellm") is None, reason="the extra litellm is not installed")
CHILD = Path(__file__).parent / "litellm_child.py"
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather in a city.",
                 "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
}  # fmt: skip
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
streamed = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@pytest.fixture(scope="module")
def litellm():
    """Return a function that asks LiteLLM for one completion and returns the reply or the error."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, str(CHILD)], env=env, stdin=pipe, stdout=pipe, text=True) as child:

        def ask(url, *messages, model="streamtool/openai/sample", asynchronous=False, wrapped=False, **options):
            request = {"model": model, "messages": [QUESTION, *messages], "tools": [WEATHER], "api_base": f"{url}/v1",
                       "api_key": "none", "num_retries": 0, "max_retries": 0, "max_tokens": 500, **options}  # fmt: skip
            line = json.dumps({"request": request, "asynchronous": asynchronous, "wrapped": wrapped})
            child.stdin.write(line + "\n")
            child.stdin.flush()
            return json.loads(child.stdout.readline())

        yield ask
        child.stdin.close()


@pytest.fixture(scope="module")
def sample():
    with uvicorn_server(Sample(delta=3)) as server:
        yield server.url


def called(told, stream):
    assert told.get("error") is None
    assert told["pieces"] > 3 if stream else told["pieces"] == 0
    (choice,) = told["reply"]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "get_weather") and call["id"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    return choice["message"]


@both
@streamed
def test_a_text_only_model_gets_tools_and_reads_their_results(litellm, sample, stream, asynchronous):
    message = called(litellm(sample, stream=stream, asynchronous=asynchronous), stream)
    assert message["content"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "light rain"}
    told = litellm(sample, message, result, stream=stream, asynchronous=asynchronous)
    (choice,) = told["reply"]["choices"]
    assert choice["finish_reason"] == "stop"
    assert "light rain" in choice["message"]["content"] and not choice["message"]["tool_calls"]


@both
@streamed
def test_a_wrapped_client_gets_the_same_calls(litellm, sample, stream, asynchronous):
    called(litellm(sample, model="openai/sample", wrapped=True, stream=stream, asynchronous=asynchronous), stream)


def test_the_model_receives_only_text_and_the_other_options(litellm):
    usage = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
    upstream = ScriptedUpstream(text("Let me look. ", CALL, size=3, usage=usage))
    with uvicorn_server(upstream) as server:
        told = litellm(server.url, stream=True, temperature=0.5, stream_options={"include_usage": True})
    called(told, stream=True)
    sent = upstream.requests[-1].json
    assert "tools" not in sent and "get_weather" in str(sent["messages"])
    assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("sample", 0.5, 500)
    assert {key: told["reply"]["usage"][key] for key in usage} == usage


@both
@streamed
def test_an_upstream_error_is_a_litellm_error(litellm, stream, asynchronous):
    with uvicorn_server(ScriptedUpstream(status(429, "slow down"))) as server:
        told = litellm(server.url, stream=stream, asynchronous=asynchronous)
    assert "slow down" in told["error"] and "RateLimitError" in told["error"]
    assert ("MidStreamFallbackError" if stream and asynchronous else "RateLimitError") in told["kinds"]


@both
def test_a_reply_that_breaks_off_is_an_error(litellm, asynchronous):
    broken = Script(
        (*text("Let me look. ", CALL, size=3).steps[:9], b'data: {"error": {"message": "out of memory"}}\n\n')
    )
    with uvicorn_server(ScriptedUpstream(broken)) as server:
        told = litellm(server.url, stream=True, asynchronous=asynchronous)
    assert "MidStreamFallbackError" in told["kinds"]
