"""Compaction of a conversation (`POST /v1/responses/compact`), by requesting a summary from the model."""

import time
from functools import partial

from streamtool.asgi.answers import new_id
from streamtool.asgi.off_loop import off_loop
from streamtool.asgi.types import AppResponse, ASGIApp, Receive, Scope, ask
from streamtool.exchange.encoding import decode_body
from streamtool.protocols import responses
from streamtool.settings import LimitSettings
from streamtool.store.replies import ClientStoreView

_OF_THE_BODY = frozenset((b"content-length", b"content-encoding", b"transfer-encoding"))


async def compact(
    app: ASGIApp, limits: LimitSettings, scope: Scope, body: bytes, *, receive: Receive, memory: ClientStoreView
) -> AppResponse:
    """Return the response to a compaction request. `app` serves `/v1/responses`, from which the summary is requested.

    If the summary request is rejected or fails, the result is the app's response to that request. Raises RequestError,
    StoreError, or, if the summary is incomplete, UpstreamError.
    """
    given = decode_body(body, scope["headers"], limits.body)
    compaction = await off_loop(partial(responses.read_compaction, given, limits, memory.demand))
    length = str(len(compaction.request)).encode()
    headers = [pair for pair in scope["headers"] if pair[0].lower() not in _OF_THE_BODY]
    answer = await ask(
        app,
        scope,
        "POST",
        scope["path"].removesuffix("/compact"),
        body=compaction.request,
        headers=[*headers, (b"content-length", length)],
        receive=receive,
    )
    if answer.status != 200:
        return answer
    write = partial(responses.write_compaction, compaction, answer.body, id=new_id("resp_"), created=int(time.time()))
    return AppResponse(200, await off_loop(write))
