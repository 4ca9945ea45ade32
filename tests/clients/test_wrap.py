"""`streamtool.wrap`: one line gives an existing client tools, although its server only writes text."""

import json

import anthropic
import anyio
import httpx
import openai
import pytest
from support.servers import uvicorn_server

from streamtool import SettingsError, sample, wrap

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
ASKS = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def server():
    with uvicorn_server(sample.app) as served:
        yield served


def test_an_openai_client_streams_calls(server):
    client = wrap(openai.OpenAI(base_url=f"{server.url}/v1", api_key="none"))
    assert type(client) is openai.OpenAI
    chunks = list(client.chat.completions.create(model="m", messages=ASKS, tools=[TOOL], stream=True))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert calls[0].function.name == "get_weather"
    assert json.loads("".join(call.function.arguments for call in calls)) == {"city": "Paris"}


def test_an_asynchronous_openai_client_streams_calls(server):
    async def main():
        async with wrap(openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")) as client:
            return await client.chat.completions.create(model="m", messages=ASKS, tools=[TOOL])

    whole = anyio.run(main)
    assert whole.choices[0].message.tool_calls[0].function.name == "get_weather"


def test_an_anthropic_client_with_a_server_of_another_protocol(server):
    client = wrap(anthropic.Anthropic(base_url=server.url, api_key="none"), app_protocol="chat")
    tool = {"name": "get_weather", "input_schema": SCHEMA}
    message = client.messages.create(model="m", max_tokens=1000, messages=ASKS, tools=[tool])
    assert [block.input for block in message.content if block.type == "tool_use"] == [{"city": "Paris"}]


def test_the_original_client_is_not_modified(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    wrap(client)
    whole = client.chat.completions.create(model="m", messages=ASKS, tools=[TOOL])
    assert whole.choices[0].message.tool_calls is None


def test_options_are_validated_like_settings():
    with pytest.raises(SettingsError, match="mode: expected one of"):
        wrap(openai.OpenAI(api_key="none"), mode="nativ")


@pytest.mark.parametrize("other", [object(), httpx.Client(), "http://127.0.0.1"])
def test_other_objects_are_rejected(other):
    with pytest.raises(TypeError, match="an openai or anthropic client, not"):
        wrap(other)
