"""Limits on the number of requests and tokens that a client may use per minute.

Usage is counted in the store, so all processes that share a store also share the counts. Minutes are clock minutes. A
request's token usage is known only when its reply has ended, so a client can exceed its budget once and then has to
wait. If the store fails, every request is admitted.
"""

import math
import time
from collections.abc import Callable

from anyio import CancelScope

from streamtool.core.clients import ClientNames, client_of
from streamtool.core.errors import StoreError, TooManyError
from streamtool.protocols.interfaces import Headers
from streamtool.settings import KeyLimits, LimitSettings, Settings
from streamtool.store.replies import Store
from streamtool.store.storing import use_async

_MINUTE = 60


class Budgets:
    """Counts the usage of all clients, and rejects requests beyond their limits."""

    def __init__(self, settings: Settings, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._names = ClientNames(settings.client_keys)
        self._store = store
        self._clock = clock
        self._all = general_limits(settings.limits)
        self._own = {
            name: KeyLimits(
                exchanges=_first_set(own.exchanges, self._all.exchanges),
                requests_per_minute=_first_set(own.requests_per_minute, self._all.requests_per_minute),
                tokens_per_minute=_first_set(own.tokens_per_minute, self._all.tokens_per_minute),
            )
            for name, own in settings.limits.keys.items()
        }

    def limits_for(self, headers: Headers) -> KeyLimits:
        """Return the limits of the client that sent these headers."""
        return self._own.get(self._names.of(headers), self._all) if self._own else self._all

    def limits(self, headers: Headers) -> bool:
        """Return whether the requests or tokens of the client that sent these headers are limited."""
        return _limits_use(self.limits_for(headers))

    async def admit(self, headers: Headers, client: str | None = None) -> None:
        """Count a request. Raises TooManyError if it exceeds the limit, or if the tokens are used up.

        `client` is the client's identity; if None, it is derived from the headers.
        """
        limits = self.limits_for(headers)
        if not _limits_use(limits):
            return
        client = client_of(headers) if client is None else client

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

    async def spend(self, headers: Headers, tokens: int, client: str | None = None) -> None:
        """Count the tokens of a finished reply, even if the caller is cancelled."""
        if tokens and self.limits_for(headers).tokens_per_minute:
            client = client_of(headers) if client is None else client
            with CancelScope(shield=True):
                try:
                    await use_async(self._store, lambda: self._count(client, "tokens", tokens))
                except StoreError:
                    return

    def _count(self, client: str, what: str, amount: int) -> int:
        minute = int(self._clock() // _MINUTE)
        return self._store.count(f"{client} {what} {minute}", amount, 2 * _MINUTE)

    def _too_many(self, what: str) -> TooManyError:
        error = TooManyError(f"your limit is {what}; send the request again later", code="rate_limit_exceeded")
        seconds = math.ceil(_MINUTE - self._clock() % _MINUTE)
        error.headers = ((b"retry-after", b"%d" % max(1, seconds)),)
        return error


def general_limits(limits: LimitSettings) -> KeyLimits:
    """Return the limits for clients that have no specific limits."""
    return KeyLimits(
        exchanges=limits.exchanges_per_client,
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
    )


def _limits_use(limits: KeyLimits) -> bool:
    """Return whether these limits concern requests or tokens."""
    return bool(limits.requests_per_minute or limits.tokens_per_minute)


def _first_set(own: int | None, general: int | None) -> int | None:
    return general if own is None else own
