"""Replies of a real model whose connection breaks: the continued reply equals the undisturbed one."""

import pytest
from real_models.resumption import KINDS, measure
from support.engine import Engine
from support.sweeps import each

pytestmark = [pytest.mark.models, pytest.mark.long]


@pytest.mark.anyio
@each("kind", KINDS)
async def test_a_reply_is_continued_exactly_while_the_server_has_its_text(chat_model: Engine, kind):
    figures = await measure(chat_model, kind, 3, bound=False)
    assert figures.equal == figures.places


@pytest.mark.anyio
@each("kind", KINDS)
async def test_a_call_is_valid_after_the_server_has_lost_its_text(chat_model: Engine, kind):
    figures = await measure(chat_model, kind, 3, cached=False, bound=False)
    assert figures.equal + figures.valid == figures.places
