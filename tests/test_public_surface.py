"""The public surface changes only with its file, so that a review sees each change."""

import difflib

import pytest

pytest.importorskip("griffe")
pytest.importorskip("prometheus_client")

from tools import public_surface


def test_the_public_surface_is_the_one_in_the_file():
    written = public_surface.FILE.read_text(encoding="utf-8").splitlines()
    changes = list(difflib.unified_diff(written, list(public_surface.lines()), n=0, lineterm=""))[2:]
    removed = [line[1:] for line in changes if line.startswith("-")]
    added = [line[1:] for line in changes if line.startswith("+")]
    run = "python -m tools.public_surface"
    assert not removed, f"changed; docs/stability.md says which version may do that; if this one, run {run}: {removed}"
    assert not added, f"new, and not in the file; run {run}: {added}"


def test_the_file_lists_each_public_name_once():
    lines = public_surface.FILE.read_text(encoding="utf-8").splitlines()
    assert len(set(lines)) == len(lines)
