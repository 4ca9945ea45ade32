"""Compacts a conversation (`POST /v1/responses/compact`): the model is asked for a summary like for any reply."""

import time
from functools import partial

from streamtool.exchange import decode_body
from streamtool.http.answers import new_id
from streamtool.http.asgi import AppResponse, ASGIApp, Receive, Scope, ask
from streamtool.http.off_loop import off_loop
from streamtool.protocols import responses
from streamtool.settings import LimitSettings
from streamtool.state.replies import Shelf

_OF_THE_BODY = frozenset((b"content-length", b"content-encoding", b"transfer-encoding"))


async def compact(
    app: ASGIApp, limits: LimitSettings, scope: Scope, body: bytes, *, receive: Receive, memory: Shelf
) -> AppResponse:
    """The answer to a client that wants its conversation compacted; `app` serves `/v1/responses`.

    If the summary is refused, or fails, that is the answer. Raises RequestError, StoreError; UpstreamError when there
    is no whole summary.
    """
    given = decode_body(body, scope["headers"], limits.body)
    compaction = await off_loop(partial(responses.read_compaction, given, limits, memory.demand))
    length = str(len(compaction.request)).encode()
    headers = [pair for pair in scope["headers"] if pair[0].lower() not in _OF_THE_BODY]
    answer = await ask(
        app, scope, "POST", scope["path"].removesuffix("/compact"), body=compaction.request,
        headers=[*headers, (b"content-length", length)], receive=receive,
    )  # fmt: skip
    if answer.status != 200:
        return answer
    write = partial(responses.write_compaction, compaction, answer.body, id=new_id("resp_"), created=int(time.time()))
    return AppResponse(200, await off_loop(write))
