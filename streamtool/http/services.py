"""What exchanges use beside their settings, opened once for each middleware or transport."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio

from statemachine import precompile
from streamtool.exchange import Services
from streamtool.http.off_loop import off_loop
from streamtool.http.phrases import open_phrases
from streamtool.http.templates import ChatTemplates
from streamtool.http.tokenizers import TokenizerFiles
from streamtool.policy.refusals import default_phrases
from streamtool.settings import Settings
from streamtool.state.capabilities import CapabilityCache
from streamtool.state.replies import Store


def open_services(settings: Settings, templates: ChatTemplates, store: Store) -> Services:
    """All but the memory, of which each client has a part. Raises SettingsError for a file that cannot be used."""
    shared = frozenset(name for name, upstream in settings.upstreams.items() if not settings.shows_clients(upstream))
    return Services(
        capabilities=CapabilityCache(shared=shared, store=store if store.blocks else None),
        templates=templates,
        tokenizers=TokenizerFiles(settings),
        phrases=open_phrases(settings),
    )


@asynccontextmanager
async def warmed(settings: Settings) -> AsyncIterator[None]:
    """Makes, beside what is served meanwhile, what the first replies would wait for otherwise."""

    async def warm() -> None:
        await off_loop(partial(precompile, settings.formats))
        if settings.refusals == "retry" and settings.phrases is None:
            await off_loop(default_phrases)

    failed: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(warm)
        try:
            yield
        except Exception as error:  # noqa: BLE001  the task group would put it into a group
            failed = error
        tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed
