"""LiteLLM in a separate process, since it leaves loops and clients open: reads requests, writes replies, one per
line.
"""

import asyncio
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it fetches prices on import

import litellm
from openai import AsyncOpenAI, OpenAI

import streamtool
from streamtool.adapters.litellm import ToolProvider


async def answer_async(request):
    reply = await litellm.acompletion(**request)
    return [chunk async for chunk in reply] if request["stream"] else reply


def answer(request, asynchronous, wrapped):
    if wrapped:
        client = (AsyncOpenAI if asynchronous else OpenAI)(base_url=request["api_base"], api_key="none")
        request["client"] = streamtool.wrap(client)
    reply = asyncio.run(answer_async(request)) if asynchronous else litellm.completion(**request)
    if not request["stream"]:
        return {"reply": reply.model_dump(), "pieces": 0}
    chunks = list(reply)
    pieces = sum(bool(chunk.choices and chunk.choices[0].delta.tool_calls) for chunk in chunks)
    return {"reply": litellm.stream_chunk_builder(chunks).model_dump(), "pieces": pieces}


litellm.suppress_debug_info = True
litellm.custom_provider_map = [{"provider": "streamtool", "custom_handler": ToolProvider()}]
for line in sys.stdin:
    try:
        told = answer(**json.loads(line))
    except Exception as error:
        told = {"error": str(error), "kinds": [kind.__name__ for kind in type(error).__mro__]}
    print(json.dumps(told), flush=True)
