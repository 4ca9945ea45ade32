"""Outputs: JSON lines or a Parquet table, and the progress of a run, from which it can be resumed."""

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Protocol, Self

from attrs import field, frozen

from streamtool.batch.reading import Result
from streamtool.batch.sources import import_extra
from streamtool.core.errors import SettingsError

PROGRESS: Final = ".progress"
"""Suffix of the file that stores the progress of a run next to its output."""
PARQUET: Final = ".parquet"


@frozen
class Checkpoint:
    """Progress of a run: the size of the output so far, and how much of each input file it covers."""

    done: Mapping[str, int] = field(factory=dict)
    """File → number of its records that have been processed."""
    size: int = 0
    """Size of the output in bytes."""
    counts: Counter[str] = field(factory=Counter)

    @classmethod
    def read(cls, output: str) -> Self:
        """Read the checkpoint of an unfinished output. Raises SettingsError."""
        path = Path(output + PROGRESS)
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            return cls(told["done"], told["size"], Counter(told["counts"]))
        except FileNotFoundError:
            raise SettingsError(f"{output} cannot be resumed: {path.name} is missing") from None
        except (OSError, ValueError, KeyError, TypeError):
            raise SettingsError(f"{path} does not contain the progress of an earlier run") from None


class Output(Protocol):
    """Destination for results, which arrive in order."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Close the output."""

    def write(self, result: Result) -> None:
        """Write a batch's result."""


class LinesOutput:
    """JSONL file, with the progress stored in a file next to it; or standard output, without progress."""

    def __init__(self, name: str | None, begun: Checkpoint) -> None:
        self._name = name
        self._done = dict(begun.done)
        self._counts = Counter(begun.counts)
        self._file: BinaryIO = sys.stdout.buffer
        if name is not None:
            try:
                self._file = open(name, "r+b" if begun.size else "wb")  # noqa: PTH123, SIM115  closed by __exit__
            except OSError as error:
                raise SettingsError(f"{name} cannot be written: {error.strerror}", param=name) from None
            self._file.truncate(begun.size)
            self._file.seek(begun.size)
            self._write_progress()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.flush()
        if self._name is not None:
            self._file.close()
            if kind is None:
                Path(self._name + PROGRESS).unlink(missing_ok=True)

    def write(self, result: Result) -> None:
        self._file.write(result.lines)
        self._file.flush()
        if self._name is None:
            return
        self._done[result.file] = result.last
        self._counts += result.counts
        self._write_progress()

    def _write_progress(self) -> None:
        """Store the progress."""
        told = {"done": self._done, "size": self._file.tell(), "counts": dict(self._counts)}
        path = Path(f"{self._name}{PROGRESS}")
        new = path.with_name(path.name + ".new")
        new.write_text(json.dumps(told), encoding="utf-8")
        os.replace(new, path)  # noqa: PTH105  atomic: never half written


class Table:
    """Parquet file with one row per record; a record's calls are a nested list."""

    def __init__(self, name: str) -> None:
        pa, pq = (import_extra(module, f"{name} needs pyarrow") for module in ("pyarrow", "pyarrow.parquet"))
        text = pa.string()
        call = {
            "name": text,
            "arguments": text,
            "id": text,
            "format": text,
            "complete": pa.bool_(),
            "repairs": pa.list_(text),
        }
        discarded = {"text": text, "reason": text}
        self._schema = pa.schema(
            {
                "file": text,
                "record": pa.int64(),
                "text": text,
                "reasoning": text,
                "calls": pa.list_(pa.struct(call)),
                "discarded": pa.list_(pa.struct(discarded)),
                "looks_like_a_call": pa.bool_(),
                "error": text,
            }
        )
        self._pa: Any = pa
        try:
            self._writer = pq.ParquetWriter(name, self._schema, compression="zstd")
        except OSError as error:
            raise SettingsError(f"{name} cannot be written: {error}", param=name) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._writer.close()

    def write(self, result: Result) -> None:
        rows = [json.loads(line) for line in result.lines.splitlines()]
        self._writer.write_table(self._pa.Table.from_pylist(rows, schema=self._schema))
