"""What a client may use in a minute: requests and tokens.

They are counted in the store, so all processes that share one count together. A minute begins with the clock's. What a
request costs in tokens is known when its reply is over, so a client may overdraw once, and then waits. A store that
fails refuses nobody.
"""

import math
import time
from collections.abc import Callable

from anyio import CancelScope

from streamtool.errors import StoreError, TooManyError
from streamtool.http.storing import use_async
from streamtool.protocols.interfaces import Headers
from streamtool.settings import KeyLimits, LimitSettings, Settings
from streamtool.state.clients import ClientNames, client_of
from streamtool.state.replies import Store

_MINUTE = 60


class Budgets:
    """Of all clients."""

    def __init__(self, settings: Settings, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._names = ClientNames(settings.client_keys)
        self._store = store
        self._clock = clock
        self._all = of_all(settings.limits)
        self._own = {
            name: KeyLimits(
                exchanges=_first(own.exchanges, self._all.exchanges),
                requests_per_minute=_first(own.requests_per_minute, self._all.requests_per_minute),
                tokens_per_minute=_first(own.tokens_per_minute, self._all.tokens_per_minute),
            )
            for name, own in settings.limits.keys.items()
        }

    def of(self, headers: Headers) -> KeyLimits:
        """What the client that sends these headers may use."""
        return self._own.get(self._names.of(headers), self._all) if self._own else self._all

    async def admit(self, headers: Headers) -> None:
        """Count a request. Raises TooManyError if it is one too many, or the tokens are used up."""
        limits = self.of(headers)
        if not limits.requests_per_minute and not limits.tokens_per_minute:
            return
        client = client_of(headers)

        def counts() -> tuple[int, int]:
            return (
                self._count(client, "requests", 1) if limits.requests_per_minute else 0,
                self._count(client, "tokens", 0) if limits.tokens_per_minute else 0,
            )

        try:
            requests, tokens = await use_async(self._store, counts)
        except StoreError:
            return
        if requests > (limits.requests_per_minute or requests):
            raise self._too_many(f"{limits.requests_per_minute} requests a minute (requests_per_minute)")
        if limits.tokens_per_minute and tokens >= limits.tokens_per_minute:
            raise self._too_many(f"{limits.tokens_per_minute} tokens a minute (tokens_per_minute)")

    async def spend(self, headers: Headers, tokens: int) -> None:
        """Count the tokens of a reply that is over, even if whoever asked is cancelled."""
        if tokens and self.of(headers).tokens_per_minute:
            client = client_of(headers)
            with CancelScope(shield=True):
                try:
                    await use_async(self._store, lambda: self._count(client, "tokens", tokens))
                except StoreError:
                    return

    def _count(self, client: str, what: str, amount: int) -> int:
        minute = int(self._clock() // _MINUTE)
        return self._store.count(f"{client} {what} {minute}", amount, 2 * _MINUTE)

    def _too_many(self, what: str) -> TooManyError:
        error = TooManyError(f"you may use {what}; send the request again later", code="rate_limit_exceeded")
        seconds = math.ceil(_MINUTE - self._clock() % _MINUTE)
        error.headers = ((b"retry-after", b"%d" % max(1, seconds)),)
        return error


def of_all(limits: LimitSettings) -> KeyLimits:
    """What clients may use of whom nothing else is said."""
    return KeyLimits(
        exchanges=limits.exchanges_per_client,
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
    )


def _first(own: int | None, general: int | None) -> int | None:
    return general if own is None else own
