"""A store backend on a Redis server, which processes on several machines can share.

All keys begin with `streamtool:`. The server stores the values and, for each client, a sorted set of its keys (by
expiry time) and a hash of the values' sizes. A separate sorted set contains the total size for each client, so that a
script can find the largest client without reading all entries. A value that Redis itself has expired is still counted
until its client stores another value, or until that client is the largest; the expired value is then the first to be
removed. The script constructs the names of its keys, so the server cannot be a cluster. Sources: Redis command
reference; redis-py 8.1.
"""

import math
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import WeakSet

from streamtool.core.errors import SettingsError
from streamtool.settings import StoreSettings
from streamtool.store.memory_store import StoredValue, client_prefix
from streamtool.store.outage import TIMEOUT, Operation, Outage

_NAMES: Final = "streamtool:"
"""Prefix of all keys."""
_BATCH_SIZE: Final = 64
"""Maximum number of values to send to the server together."""
_UNTIL: Final = struct.Struct(">d")
"""Encoding of the expiry time that precedes each value, so that all readers agree on when it expires."""
_PUT: Final = """
local names, client, key, value = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local length, until_, now, seconds, size = tonumber(ARGV[5]), ARGV[6], ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9])
local clients, total = names .. 'clients', names .. 'total'
local function ages(of) return names .. 'ages:' .. of end
local function lengths(of) return names .. 'lengths:' .. of end
local function add(of, bytes)
    redis.call('ZINCRBY', clients, bytes, of)
    redis.call('INCRBY', total, bytes)
end
local function drop(of, one)
    redis.call('DEL', names .. one)
    redis.call('ZREM', ages(of), one)
    add(of, 0 - (tonumber(redis.call('HGET', lengths(of), one)) or 0))
    redis.call('HDEL', lengths(of), one)
end
local function leave(of)
    redis.call('DECRBY', total, redis.call('ZSCORE', clients, of) or 0)
    redis.call('ZREM', clients, of)
end
drop(client, key)
for _, old in ipairs(redis.call('ZRANGEBYSCORE', ages(client), '-inf', now, 'LIMIT', 0, 100)) do drop(client, old) end
if redis.call('ZCARD', ages(client)) == 0 then leave(client) end
if length > 0 then
    redis.call('SET', names .. key, value, 'PX', seconds * 1000)
    redis.call('ZADD', ages(client), until_, key)
    redis.call('HSET', lengths(client), key, length)
    add(client, length)
    redis.call('EXPIRE', ages(client), 2 * seconds)
    redis.call('EXPIRE', lengths(client), 2 * seconds)
end
while tonumber(redis.call('GET', total) or 0) > size do
    local largest = redis.call('ZRANGE', clients, -1, -1)[1]
    if not largest then break end
    local oldest = redis.call('ZRANGE', ages(largest), 0, 0)[1]
    if oldest then drop(largest, oldest) else leave(largest) end
end
redis.call('EXPIRE', clients, 2 * seconds)
redis.call('EXPIRE', total, 2 * seconds)
"""
"""A script that stores a value, or deletes it if it is empty. The largest client loses its oldest entries until all
entries fit.
"""


class RedisBackend:
    """A backend on a Redis server. Raises SettingsError if the server cannot be used at all, or if redis-py is
    missing.
    """

    def __init__(self, settings: StoreSettings, failed: Callable[[Operation], object]) -> None:
        try:
            import redis  # noqa: PLC0415  an extra
        except ImportError as missing:
            raise SettingsError(
                'store.redis: redis is missing; install the extra "redis": pip install "streamtool[redis]"',
                param="store.redis",
                code="missing_extra",
            ) from missing
        url = settings.redis or ""
        self.place = f'store.redis: "{_without_password(url)}"'
        self._reading = Outage(self.place, "read", failed)
        self._writing = Outage(self.place, "write", failed)
        self._connections = WeakSet[Any]()
        """The connections that have been open and were not closed here."""
        self._seconds = settings.seconds
        self._size = settings.size
        self._error: type[Exception] = redis.RedisError
        try:
            self._server: Any = redis.Redis.from_url(
                url,
                socket_timeout=TIMEOUT,
                socket_connect_timeout=TIMEOUT,
                retry=None,
                redis_connect_func=self._connected,
            )
            self._put: Any = self._server.register_script(_PUT)
            self._server.ping()
        except (ValueError, OSError, redis.RedisError) as error:
            sentence = f"{self.place} cannot be used: {error}; specify a server that responds"
            raise SettingsError(sentence, param="store.redis") from None

    def read(self, key: str, now: float, /) -> bytes | None:
        """Return the value unless it has expired at `now`. Raises StoreError if the server does not respond in time."""
        self._reading.check()
        try:
            found: bytes | None = self._server.get(_NAMES + key)
        except (OSError, self._error) as error:
            raise self._reading.record_failure(str(error)) from error
        self._reading.record_success()
        if found is None:
            self._reading.check_missing()
            return None
        if _UNTIL.unpack_from(found)[0] <= now:
            return None
        return found[_UNTIL.size :]

    def write(self, entries: Sequence[StoredValue], now: float, /) -> None:
        """Write these entries; delete the empty ones, and any that do not fit. Raises StoreError."""
        self._writing.check()
        try:
            for first in range(0, len(entries), _BATCH_SIZE):
                with self._server.pipeline(transaction=False) as pipe:
                    for entry in entries[first : first + _BATCH_SIZE]:
                        self._put(args=self._arguments(entry, now), client=pipe)
                    pipe.execute()
        except (OSError, self._error) as error:
            raise self._writing.record_failure(str(error)) from error
        self._writing.record_success()

    def count(self, key: str, amount: int, _now: float, seconds: float, /) -> int:
        """Add to a counter that expires after this many seconds, and return its sum. Raises StoreError."""
        self._writing.check()
        try:
            with self._server.pipeline() as pipe:
                pipe.incrby(f"{_NAMES}counts:{key}", amount)
                pipe.expire(f"{_NAMES}counts:{key}", math.ceil(seconds))
                found: int = pipe.execute()[0]
        except (OSError, self._error) as error:
            raise self._writing.record_failure(str(error)) from error
        self._writing.record_success()
        return found

    def resume(self) -> None:
        """Allow the next write, even if the last one failed only a moment ago."""
        self._writing.resume()

    def close(self) -> None:
        """Close all connections. The next operation opens them again."""
        self._server.close()
        self._connections.clear()

    def _connected(self, connection: Any) -> None:
        """Log in on a connection that has just been opened. If it had been open before, the server may have been away
        without any operation having failed here.
        """
        connection.on_connect()
        if connection in self._connections:
            self._reading.record_reconnection()
        self._connections.add(connection)

    def _arguments(self, entry: StoredValue, now: float) -> tuple[Any, ...]:
        value = _UNTIL.pack(entry.until) + entry.value
        seconds = max(int(self._seconds), 1)
        client = client_prefix(entry.key).rstrip()
        return _NAMES, client, entry.key, value, len(entry.value), entry.until, now, seconds, self._size


def _without_password(url: str) -> str:
    """Return the URL without the password."""
    return re.sub(r"//[^/]*@", "//", url.partition("?")[0])
