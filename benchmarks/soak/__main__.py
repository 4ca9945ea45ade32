"""Sends mixed traffic for several minutes and reports losses: `python benchmarks/soak MINUTES [--server …] [--seed N]
…`.

Clients for all protocols, with all kinds of behavior, use an upstream through a proxy in a separate process. A seed
determines the upstream's replies, including false claims and faults. Each client's expected result follows from how its
reply was composed. The exit code is 1 if anything was lost, or if the proxy holds more resources than at the start.
Linux only.
"""

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
sys.path += [str(HERE.parent), str(HERE.parent.parent / "tests")]

from clients import INSTEAD, Client, Sdks  # noqa: E402
from common import Row, Table  # noqa: E402
from judge import LOSSES, Tally, of_answer, of_record, of_reply, refusal  # noqa: E402
from plans import Plan, plan  # noqa: E402
from replies import Reply  # noqa: E402
from upstream import Upstream  # noqa: E402
from watch import KEEP, SERVERS, Sample, Watch, watched  # noqa: E402

WARM: Final = 200
"""Exchanges before the first sample."""
PERIOD: Final = 30.0
"""Seconds between two samples."""
GROWTH: Final = 20 * 1024
"""Maximum growth of the proxy's memory after the warm-up, in KB."""
SETTLES: Final = 60.0
"""Maximum seconds until everything is idle."""
LOOK: Final = 0.02
"""Seconds between two checks of a condition."""
RECORDED: Final = 60.0
"""Maximum seconds between a reply and its record."""
SHOWN: Final = 30
"""Number of losses that are printed in detail."""


class Soak:
    """One run."""

    def __init__(self, seed: int, server: str, streams: int) -> None:
        self.tally = Tally()
        self.samples: list[Sample] = []
        self.exchanges = 0
        self._seed = seed
        self._server = server
        self._streams = streams
        self._plans: dict[str, Plan] = {}
        self._upstream = Upstream(self._reply_to)

    async def run(self, seconds: float) -> None:
        """Run for this many seconds."""
        async with await asyncio.start_server(self._upstream.connection, "127.0.0.1", 0) as listening:
            url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            with tempfile.TemporaryFile() as log:
                async with watched(self._server, url, log) as watch:
                    await self._traffic(watch, lambda: self.exchanges < WARM)
                    await self._idle(watch)
                    self.samples.append(await watch.sample())
                    began = time.monotonic()
                    sampling = asyncio.create_task(self._sample(watch, began))
                    await self._traffic(watch, lambda: time.monotonic() - began < seconds)
                    sampling.cancel()
                    await self._idle(watch)
                    self.samples.append(await self._quiet(watch, began))
                log.seek(0)
                self._log(log.read().decode(errors="replace"))

    def _reply_to(self, model: str, attempt: int) -> Reply | None:
        asked = self._plans.get(model)
        return None if asked is None else asked.replies[: attempt + 1][-1]

    async def _traffic(self, watch: Watch, more: Any) -> None:
        sdks = Sdks(watch.port)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._streams):
                tasks.create_task(self._client(watch, sdks, more))
        await sdks.aclose()

    async def _client(self, watch: Watch, sdks: Sdks, more: Any) -> None:
        client = Client(watch.port, self._upstream.saying.__contains__)
        while more():
            self.exchanges += 1
            asked = plan(self._seed, self.exchanges)
            self._plans[asked.model] = asked
            await self._exchange(asked, client, sdks, watch)
            self._upstream.forget(asked.model)
            del self._plans[asked.model]
        client.close()

    async def _exchange(self, asked: Plan, client: Client, sdks: Sdks, watch: Watch) -> None:
        tally, answer = self.tally, None
        tally.counts[asked.manner] += 1
        tally.counts[asked.reply.fault or asked.reply.lie or "sound"] += 1
        if asked.manner == "SDK" and not asked.passes:
            tally.lose(asked, of_reply(asked, await sdks.ask(asked)))
        else:
            answer = await client.ask(asked)
            if asked.manner.startswith(("leaves", "half")):
                return
            if asked.manner in INSTEAD:
                tally.lose(asked, refusal(asked, answer))
                return
            tally.lose(asked, of_answer(asked, answer, self._upstream.body.get(asked.model)))
        await _until(lambda: asked.model in watch.records, RECORDED)
        tally.lose(asked, of_record(asked, watch.records.pop(asked.model, []), answer))

    async def _idle(self, watch: Watch) -> None:
        """Wait until no exchange is open and the servers have closed their idle connections."""
        if not await _until(lambda: not self._upstream.saying, SETTLES):
            self.tally.losses["upstream connection that stayed open"] += len(self._upstream.saying)
        await asyncio.sleep(KEEP + 1)
        watch.records.clear()
        await self._close_idle(watch)

    async def _close_idle(self, watch: Watch) -> None:
        """Close the idle connections to the upstream, and wait for the proxy to notice."""
        self._upstream.rest()
        await watch.touch()
        await asyncio.sleep(1)

    async def _quiet(self, watch: Watch, began: float) -> Sample:
        """Return the first sample with no more resources than at the start, falling back to the last sample."""
        first, end = self.samples[0], time.monotonic() + SETTLES
        while not (sample := await watch.sample(time.monotonic() - began)).returned_to(first):
            if time.monotonic() > end:
                break
            # An upstream that answers for the first time after a failure is recognized again, with several requests at
            # once. If that was the last request, their connections are idle now.
            await self._close_idle(watch)
        return sample

    async def _sample(self, watch: Watch, began: float) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            self.samples.append(await watch.sample(time.monotonic() - began))

    def _log(self, said: str) -> None:
        """Count the exceptions in the server's output, except for upstream errors, which abort forwarded replies on
        purpose.
        """
        for name in re.findall(r"^[ |]*([\w.]+(?:Error|Exception|Timeout|Group))(?::|$)", said, re.MULTILINE):
            if not name.startswith("streamtool.core.errors.Upstream"):
                self.tally.losses["exception in the server"] += 1
                self.tally.shown.append(said[-3000:])

    # --- output

    def tables(self) -> Iterator[Table]:
        """Yield the tables of losses and of the proxy's resources."""
        counts, losses = self.tally.counts, self.tally.losses
        kinds = [*LOSSES, *(kind for kind in losses if kind not in LOSSES)]
        yield Table("Exchanges by what clients and upstream do", ("", "count"),
                    [Row((kind, f"{count:,}")) for kind, count in sorted(counts.items())])  # fmt: skip
        rows = [Row((kind, str(losses[kind])), "0", not losses[kind]) for kind in kinds]
        title = f"{self._server}: {self.exchanges:,} exchanges, {self._streams} at once, "
        yield Table(f"{title}{self._upstream.characters:,} characters, seed {self._seed}", ("loss", "count"), rows)
        first, last = self.samples[0], self.samples[-1]
        returned = last.returned_to(first) and last.memory - first.memory <= GROWTH
        rows = [Row(_cells(sample)) for sample in self.samples[:-1]]
        rows.append(Row(_cells(last), f"as at 0, +{GROWTH // 1024} MB", returned))
        title = f"The proxy, idle at both ends; {_slope(self.samples):+.1f} MB a minute in the second half"
        yield Table(title, ("seconds", "MB", "descriptors", "tasks", "threads"), rows)


async def _until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until the condition holds, for at most `seconds`, and return whether it holds."""
    for _ in range(int(seconds / LOOK)):
        if condition():
            break
        await asyncio.sleep(LOOK)
    return condition()


def _slope(samples: list[Sample]) -> float:
    """Return the growth of memory in MB per minute, from the middle sample to the last one."""
    middle, last = samples[(len(samples) - 1) // 2], samples[-1]
    return (last.memory - middle.memory) / 1024 * 60 / (last.seconds - middle.seconds)


def _cells(sample: Sample) -> tuple[str, ...]:
    numbers = (sample.descriptors, sample.tasks, sample.threads)
    return f"{sample.seconds:.0f}", f"{sample.memory / 1024:.1f}", *map(str, numbers)


def main() -> int:
    """Run the soak test, print the tables, and return the exit code."""
    reader = argparse.ArgumentParser(description="Mixed traffic through a proxy, and what was lost.")
    reader.add_argument("minutes", type=float)
    reader.add_argument("--server", choices=SERVERS, default="uvicorn")
    reader.add_argument("--seed", type=int, default=0)
    reader.add_argument("--streams", type=int, default=20)
    given = reader.parse_args()
    soak = Soak(given.seed, given.server, given.streams)
    asyncio.run(soak.run(60 * given.minutes))
    missed = sum(table.show() for table in soak.tables())
    for told in soak.tally.shown[:SHOWN]:
        print(told)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
