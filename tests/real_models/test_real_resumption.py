"""Replies of a real model whose connection breaks: the continued reply equals the undisturbed one."""

from functools import partial

import anyio
import pytest
from real_models.resumption import KINDS, Kind, measure
from support.engine import Engine
from support.sweeps import each

pytestmark = [pytest.mark.models, pytest.mark.long]


@each("kind", KINDS)
def test_a_reply_is_continued_exactly_while_the_server_has_its_text(chat_model: Engine, kind: Kind):
    figures = anyio.run(partial(measure, chat_model, kind, 2, bound=False))
    assert figures.equal == figures.places


@each("kind", [kind for kind in KINDS if kind.name == "call"])
def test_a_call_is_valid_after_the_server_has_lost_its_text(chat_model: Engine, kind: Kind):
    figures = anyio.run(partial(measure, chat_model, kind, 2, cached=False, bound=False))
    assert figures.equal + figures.valid == figures.places
