"""The records of files: JSONL, one JSON array, folders of recordings; plain, or compressed with gzip or zstd.

Nothing is read further than it must be: a file may be larger than the memory. What a file is, its first bytes tell.
Records stay bytes here; what is in them, other processes find out.
"""

import gzip
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from attrs import frozen

from streamtool.errors import SettingsError

LARGEST: Final = 64 * 1024 * 1024
"""Bytes of a record, at most; a longer line is a broken one."""
STDIN: Final = "-"
BATCH: Final = 1024 * 1024
"""Bytes of records that a process gets at once, about."""
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BOM = b"\xef\xbb\xbf"
_READ = 1 << 20
RECORDING: Final = b'{"type":"exchange"'
"""How the first line of a recording begins."""


@frozen
class Batch:
    """Some records of one file that follow each other."""

    file: str
    first: int
    """The number of the first one, from 1."""
    records: tuple[bytes, ...]
    """JSON; a line that is too long is empty."""
    read: int
    """Bytes of the file that were read for them, compressed ones as they are."""
    recording: bool = False
    """They are the lines of one recording, and together one record."""


def files(names: Sequence[str]) -> list[str]:
    """The files that are meant, those of folders in the order of their names. Raises SettingsError."""
    found: list[str] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            found += sorted(
                os.path.join(place, one)  # noqa: PTH118  a Path per file takes longer than its walk
                for place, _, inside in os.walk(path)
                for one in inside
                if one.endswith((".jsonl", ".json", ".jsonl.gz", ".json.gz", ".jsonl.zst", ".json.zst"))
            )
        elif path.is_file() or name == STDIN:
            found.append(name)
        else:
            raise SettingsError(f"{name} cannot be read: it is no file and no folder", param=name)
    if not found:
        raise SettingsError(f"{', '.join(names)} cannot be read: there is no .jsonl and no .json in it")
    return found


def batches(file: str, skipped: int = 0) -> Iterator[Batch]:
    """The records behind the first `skipped` ones. Raises SettingsError for what cannot be read or is no records."""
    try:
        with _opened(file) as raw:
            buffered = io.BufferedReader(cast("io.RawIOBase", _decompressed(raw, file)), _READ)
            source = cast("BinaryIO", buffered)
            begins = buffered.peek(4096).removeprefix(_BOM).lstrip()
            if begins.startswith(b"["):
                yield from _gathered(file, _array(source, file), raw, skipped)
            elif begins.startswith(RECORDING):
                lines = tuple(line for line in source if line.strip())
                if not skipped:
                    yield Batch(file, 1, lines, _place(raw), recording=True)
            else:
                yield from _gathered(file, _lines(source), raw, skipped)
    except (OSError, EOFError) as error:
        raise SettingsError(f"{file} cannot be read: {error}", param=file) from None


def _opened(file: str) -> AbstractContextManager[io.BufferedReader]:
    if file == STDIN:
        return nullcontext(cast("io.BufferedReader", sys.stdin.buffer))
    return open(file, "rb")  # noqa: PTH123  closed by whom it is given to


def _decompressed(raw: io.BufferedReader, file: str) -> BinaryIO:
    begins = raw.peek(4)
    if begins.startswith(_GZIP):
        return cast("BinaryIO", gzip.GzipFile(fileobj=raw))
    if begins.startswith(_ZSTD):
        zstandard = needed("zstandard", f"{file} is compressed with zstd")
        return cast("BinaryIO", zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True))
    return cast("BinaryIO", raw)


def needed(module: str, why: str) -> Any:
    """A module of the extra. Raises SettingsError when it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        raise SettingsError(f'{why}: pip install "streamtool[batch]"', code="missing_extra") from None


def _place(raw: io.BufferedReader) -> int:
    """How many bytes of a file have been read; of a pipe nobody needs to know."""
    return raw.tell() if raw.seekable() else 0


def _gathered(file: str, records: Iterable[bytes], raw: io.BufferedReader, skipped: int) -> Iterator[Batch]:
    """Records in batches."""
    gathered: list[bytes] = []
    first, size, told = skipped + 1, 0, 0
    for number, record in enumerate(records, 1):
        if number <= skipped:
            continue
        gathered.append(record)
        size += len(record)
        if size >= BATCH:
            at = _place(raw)
            yield Batch(file, first, tuple(gathered), at - told)
            first, size, told = number + 1, 0, at
            gathered.clear()
    if gathered:
        yield Batch(file, first, tuple(gathered), _place(raw) - told)


def _lines(source: BinaryIO) -> Iterator[bytes]:
    """The lines that are not empty."""
    first = True
    while line := source.readline(LARGEST):
        if first:
            line, first = line.removeprefix(_BOM), False
        if len(line) == LARGEST and not line.endswith(b"\n"):
            while (rest := source.readline(LARGEST)) and not rest.endswith(b"\n"):
                pass
            yield b""
        elif not line.isspace():
            yield line


def _array(source: BinaryIO, file: str) -> Iterator[bytes]:
    """The members of one JSON array. Raises SettingsError where it is none."""
    ijson = needed("ijson", f"{file} is a JSON array")
    number = 0
    try:
        for number, member in enumerate(ijson.items(source, "item", use_float=True), 1):  # noqa: B007
            yield json.dumps(member, ensure_ascii=False).encode("utf-8", "surrogatepass")
    except ijson.JSONError as error:
        raise SettingsError(f"{file}: the array breaks off behind record {number}: {error}", param=file) from None
