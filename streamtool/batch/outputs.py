"""Where results go: lines of JSON, or a table in Parquet; and how far they have come, so that a run can be resumed."""

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
from streamtool.batch.sources import needed
from streamtool.errors import SettingsError

PROGRESS: Final = ".progress"
"""What stands behind the name of an output in the name of the file that says how far it is."""
PARQUET: Final = ".parquet"


@frozen
class Checkpoint:
    """How far a run is: what is in the output, and what it was made of."""

    done: Mapping[str, int] = field(factory=dict)
    """Records of each file."""
    size: int = 0
    """Bytes of the output."""
    counts: Counter[str] = field(factory=Counter)

    @classmethod
    def of(cls, output: str) -> Self:
        """That of an output that was begun. Raises SettingsError."""
        path = Path(output + PROGRESS)
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            return cls(told["done"], told["size"], Counter(told["counts"]))
        except FileNotFoundError:
            raise SettingsError(f"{output} cannot be resumed: there is no {path.name} beside it") from None
        except (OSError, ValueError, KeyError, TypeError):
            raise SettingsError(f"{path} is not what an earlier run has written") from None


class Output(Protocol):
    """Takes results, in order."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Close it."""

    def write(self, result: Result) -> None:
        """Take what came of a batch."""


class Lines:
    """A file of JSONL, or standard output; with its progress beside it."""

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
            self._note()

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
        self._note()

    def _note(self) -> None:
        """Write down how far it is."""
        told = {"done": self._done, "size": self._file.tell(), "counts": dict(self._counts)}
        path = Path(f"{self._name}{PROGRESS}")
        new = path.with_name(path.name + ".new")
        new.write_text(json.dumps(told), encoding="utf-8")
        os.replace(new, path)  # noqa: PTH105  which is never half written


class Table:
    """A file of Parquet: a row for each record, its calls as a list of rows."""

    def __init__(self, name: str) -> None:
        pa, pq = (needed(module, f"{name} needs pyarrow") for module in ("pyarrow", "pyarrow.parquet"))
        text = pa.string()
        call = {"name": text, "arguments": text, "id": text, "format": text, "complete": pa.bool_(),
                "repairs": pa.list_(text)}  # fmt: skip
        discarded = {"text": text, "reason": text}
        self._schema = pa.schema(
            {"file": text, "record": pa.int64(), "text": text, "reasoning": text,
             "calls": pa.list_(pa.struct(call)), "discarded": pa.list_(pa.struct(discarded)),
             "looks_like_a_call": pa.bool_(), "error": text}
        )  # fmt: skip
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
