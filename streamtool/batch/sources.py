"""Records from input files: JSONL, a JSON array, or a folder of recordings; plain, or compressed with gzip or zstd.

A file is read incrementally, since it may be larger than memory. Its first bytes determine its type. Records remain
bytes here; the worker processes decode them.
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

from streamtool.core.errors import SettingsError

LARGEST: Final = 64 * 1024 * 1024
"""Maximum size of a record in bytes. A longer line counts as a broken record."""
STDIN: Final = "-"
BATCH: Final = 1024 * 1024
"""Approximate total size, in bytes, of the records in a batch."""
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BOM = b"\xef\xbb\xbf"
_READ = 1 << 20
RECORDING: Final = b'{"type":"exchange"'
"""Beginning of the first line of a recording."""


@frozen
class Batch:
    """Consecutive records of one file."""

    file: str
    first: int
    """Number of the first record, counted from 1."""
    records: tuple[bytes, ...]
    """The records as JSON. A line that is too long is represented by b""."""
    read: int
    """Number of bytes of the file, as stored (compressed or not), that were read for these records."""
    recording: bool = False
    """Whether `records` are the lines of one recording, which together count as one record."""


def find_files(names: Sequence[str]) -> list[str]:
    """Return the files with these names; a folder is replaced by its files, sorted. Raises SettingsError."""
    found: list[str] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            found += sorted(
                os.path.join(place, one)  # noqa: PTH118  a Path per file takes longer than the walk itself
                for place, _, inside in os.walk(path)
                for one in inside
                if one.endswith((".jsonl", ".json", ".jsonl.gz", ".json.gz", ".jsonl.zst", ".json.zst"))
            )
        elif path.is_file() or name == STDIN:
            found.append(name)
        else:
            raise SettingsError(f"{name} cannot be read: no such file or folder", param=name)
    if not found:
        raise SettingsError(f"{', '.join(names)} cannot be read: no .jsonl or .json file found")
    return found


def batches(file: str, skipped: int = 0) -> Iterator[Batch]:
    """Yield the file's records in batches, except for the first `skipped` ones. Raises SettingsError if the file cannot
    be read.
    """
    try:
        with _open(file) as raw:
            buffered = io.BufferedReader(cast("io.RawIOBase", _decompress(raw, file)), _READ)
            source = cast("BinaryIO", buffered)
            begins = buffered.peek(4096).removeprefix(_BOM).lstrip()
            if begins.startswith(b"["):
                yield from _batched(file, _array(source, file), raw, skipped)
            elif begins.startswith(RECORDING):
                lines = tuple(line for line in source if line.strip())
                if not skipped:
                    yield Batch(file, 1, lines, _place(raw), recording=True)
            else:
                yield from _batched(file, _lines(source), raw, skipped)
    except (OSError, EOFError) as error:
        raise SettingsError(f"{file} cannot be read: {error}", param=file) from None


def _open(file: str) -> AbstractContextManager[io.BufferedReader]:
    if file == STDIN:
        return nullcontext(cast("io.BufferedReader", sys.stdin.buffer))
    return open(file, "rb")  # noqa: PTH123  closed by the caller


def _decompress(raw: io.BufferedReader, file: str) -> BinaryIO:
    begins = raw.peek(4)
    if begins.startswith(_GZIP):
        return cast("BinaryIO", gzip.GzipFile(fileobj=raw))
    if begins.startswith(_ZSTD):
        zstandard = import_extra("zstandard", f"{file} is compressed with zstd")
        return cast("BinaryIO", zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True))
    return cast("BinaryIO", raw)


def import_extra(module: str, why: str) -> Any:
    """Import a module that the `batch` extra installs. Raises SettingsError if it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        raise SettingsError(f'{why}: pip install "streamtool[batch]"', code="missing_extra") from None


def _place(raw: io.BufferedReader) -> int:
    """Return the number of bytes read from a file; 0 for a pipe, whose progress cannot be shown."""
    return raw.tell() if raw.seekable() else 0


def _batched(file: str, records: Iterable[bytes], raw: io.BufferedReader, skipped: int) -> Iterator[Batch]:
    """Group records into batches."""
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
    """Yield the lines that are not blank, and b"" for each line that is too long."""
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
    """Yield the members of a JSON array. Raises SettingsError if the array turns out to be invalid."""
    ijson = import_extra("ijson", f"{file} is a JSON array")
    number = 0
    try:
        for number, member in enumerate(ijson.items(source, "item", use_float=True), 1):  # noqa: B007
            yield json.dumps(member, ensure_ascii=False).encode("utf-8", "surrogatepass")
    except ijson.JSONError as error:
        raise SettingsError(f"{file}: the array is invalid after record {number}: {error}", param=file) from None
