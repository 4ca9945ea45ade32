"""The licences of what streamtool installs: `python -m tools.licences PYTHON…` writes THIRD_PARTY.md from environments.

The list has no versions, so it changes only with the dependencies or their licences.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).resolve().parent.parent / "THIRD_PARTY.md"
ALLOWED: Final = frozenset(
    ("Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0")
)
"""Licences whose terms allow use in any product. Of a combination, each part must be one of them."""
_CLASSIFIERS: Final = {
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: BSD License": "BSD",
    "License :: OSI Approved :: ISC License (ISCL)": "ISC",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "License :: OSI Approved :: Python Software Foundation License": "PSF-2.0",
}
_REQUIRED: Final = re.compile(r"[\w.-]+")
_ABOUT: Final = """\
# Licences of the dependencies

Distributions that `pip install "streamtool[EXTRA]"` installs, and their licences according to their metadata. A test of
the release compares the list with an environment.

| distribution | licence |
|---|---|
"""


def normal(name: str) -> str:
    """Return the normalized name of a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence_of(one: Distribution) -> str:
    """Return the licence of a distribution, or "unknown"."""
    told = one.metadata
    named = told.get("License-Expression") or ""
    by_classifier = [_CLASSIFIERS[line] for line in told.get_all("Classifier", []) if line in _CLASSIFIERS]
    written = (told.get("License") or "").strip()
    found = named or " OR ".join(dict.fromkeys(by_classifier)) or (written if "\n" not in written else "")
    return found or "unknown"


def is_allowed(licence: str) -> bool:
    """Return whether every part of a licence expression is allowed."""
    return {*re.findall(r"[\w.-]+", licence)} - {"AND", "OR"} <= ALLOWED


def closure(names: Iterable[str], installed: Mapping[str, Distribution]) -> set[str]:
    """Return the distributions with these names and all that they require, as far as they are installed."""
    found: set[str] = set()
    waiting = [normal(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found or name not in installed:
            continue
        found.add(name)
        for line in installed[name].requires or ():
            required = _REQUIRED.match(line)
            if required and "extra ==" not in line:
                waiting.append(normal(required[0]))
    return found


def listed() -> dict[str, str]:
    """Return distribution → licence, as written on the page."""
    return dict(re.findall(r"^\| ([\w-]+) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)[1:])


def main(pythons: Iterable[str]) -> None:
    """Write the page."""
    rows: dict[str, str] = {}
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    for python in pythons:
        place = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
        rows |= {normal(one.name): licence_of(one) for one in distributions(path=[place])}
    for own in ("streamtool", "pip", "setuptools", "wheel"):
        rows.pop(own, None)
    lines = (f"| {name} | {licence} |\n" for name, licence in sorted(rows.items()))
    PAGE.write_text(_ABOUT + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
