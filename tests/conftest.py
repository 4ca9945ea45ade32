"""Fixtures for all tests: both backends for tests marked `anyio`."""

import atexit
import gc
import logging
import os
import re
import signal
import ssl
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import certifi
import pytest
from hypothesis import settings
from support import frozen_values, law  # noqa: F401  the first of them is to be imported before all others

from statemachine import parser
from statemachine.formats import compile as tables
from streamtool.upstream import chat_templates as templates
from streamtool.upstream import engines

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
"""Each of the processes that the tests start would compile our modules again."""

gc.disable()
"""Until the tests are collected: nothing that their modules import would be freed."""

signal.signal(signal.SIGINT, signal.default_int_handler)
"""A script's background jobs ignore SIGINT, and so would each process that a test starts and interrupts."""

re._MAXCACHE = 10_000
"""The expressions of the tests' many tables are compiled once per process."""

tables.tables_of = parser.tables_of = lru_cache(512)(tables.tables_of.__wrapped__)
"""The tests use more sets of formats than any server; each is compiled once per process."""

AUTHORITY = str(Path(__file__).parent / "support" / "authority.pem")
"""The only trusted authority, which has signed nothing. To load all authorities takes longer than most requests."""

os.environ["SSL_CERT_FILE"] = AUTHORITY
verify_paths = ssl.get_default_verify_paths()._replace(openssl_cafile=AUTHORITY, openssl_capath="")
ssl.get_default_verify_paths = lambda: verify_paths  # clients that ignore the environment read these

fresh_context = ssl.create_default_context
trusting = cache(fresh_context)


def default_context(*args: Any, **options: Any) -> ssl.SSLContext:
    """Return a TLS context; the one with the default trust store, which about a thousand clients need, is made once."""
    shared = not args and options in ({"cafile": certifi.where()}, {"cafile": AUTHORITY})
    return (trusting if shared else fresh_context)(*args, **options)


ssl.create_default_context = default_context

ASKS = templates.ask_for_template
"""The function that requests an upstream's chat template.

Tests that count requests would see these requests, so only two files enable them.
"""
RECOGNIZES = engines.recognize_server
"""The function that recognizes an upstream's server."""


async def shows_none(*_: object) -> None:
    """Pretend that an upstream has no chat template, and a server that is not known."""


templates.ask_for_template = shows_none
engines.recognize_server = shows_none


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let upstreams be asked for their chat templates and their servers."""
    monkeypatch.setattr(templates, "ask_for_template", ASKS)
    monkeypatch.setattr("streamtool.probe.client.ask_for_template", ASKS)
    monkeypatch.setattr(engines, "recognize_server", RECOGNIZES)


law.enforce()  # check every event in every test against the tables of `statemachine.machine.states`
settings.register_profile("steady", derandomize=True, deadline=None, max_examples=12)
settings.load_profile("steady")  # the same examples in every run; `-m long` tries new ones


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Use one worker more than there are cores, because tests wait for sockets and processes. Each further one takes
    20 s of CPU time to import the SDKs and to compile the formats.
    """
    return 1 + (os.cpu_count() or 1)


def pytest_configure(config: pytest.Config) -> None:
    """Let a worker exit without freeing its objects, since xdist waits ten seconds for that and then ends the process.
    The results have been sent by then.
    """
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)  # the first to be registered, so the last to be called


LONGEST = (
    "test_cli", "test_formats", "test_site", "test_parser_properties", "test_slow_clients", "test_hostile_requests",
    "test_page", "test_batch", "test_workers", "test_event_loop", "test_servers", "test_constraints", "test_shutdown",
    "test_json_text", "test_store_failures", "test_constraints_engines", "test_failover", "test_parser_scaling",
    "test_chat_templates", "test_prose", "test_probe", "test_held", "test_reload", "test_parameters_body",
    "test_conversation", "test_clients", "test_background", "test_refusal_deltas", "test_docs", "test_forcing",
)  # fmt: skip
"""The modules that take longest: they begin first, so that none of them runs alone at the end. Those that wait for
sockets and processes alternate with those that compute.
"""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[Any]:
    """Let each worker begin in another folder: after a checkout, it finds modules that another one has compiled."""
    report = yield
    given = getattr(collector.config, "workerinput", None)
    if given and collector.path == collector.config.rootpath / "tests":
        start = len(report.result) * int(given["workerid"].removeprefix("gw")) // given["workercount"]
        report.result = report.result[start:] + report.result[:start]
    return report


ON_ONE_BACKEND = (
    "agent/test_host", "agent/test_one_object", "agent/test_quoted_calls", "clients", "exchange", "filters", "forcing",
    "models", "observe", "policy", "probe", "protocols",
)  # fmt: skip
"""Folders and modules whose tests run on one backend, alternately, and under `-m long` on both. The code under test
waits only in functions of rooms that have all of their tests on both.
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest modules. The order is the same in all workers."""
    rank = {name: index for index, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (rank.get(item.path.stem, len(LONGEST)), str(item.path)))
    root, seen = Path(__file__).parent, dict[str, int]()
    for item in items:
        backend = getattr(item, "callspec", None) and item.callspec.params.get("anyio_backend")
        if backend and str(item.path.relative_to(root)).startswith(ON_ONE_BACKEND):
            index = seen.setdefault(item.nodeid.replace(backend, ""), len(seen))
            if index % 2 == (backend == "asyncio"):
                item.add_marker(pytest.mark.long)


def pytest_collection_finish() -> None:
    """Hide the thousands of collected tests from the garbage collector, and collect the other objects less often."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)
    gc.enable()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run tests marked `anyio` on asyncio and on trio.

    Tests that wait for time are marked `trio` and use `autojump_clock`.
    """
    return str(request.param)


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.long)], ids=["alternating", "on both"])
def on_both(request: pytest.FixtureRequest) -> bool:
    """Whether an `alternating` test runs all of its combinations on this backend."""
    return bool(request.param)


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """Reset logging, which commands that run in this process configure."""
    root, ours = logging.getLogger(), logging.getLogger("streamtool")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
