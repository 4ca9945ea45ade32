"""A real browser, where one is installed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENT = 120_000
"""Timeout in milliseconds."""
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


@contextmanager
def launched() -> Iterator[Any]:
    """Run a browser until the block ends."""
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield found
        found.close()


def new_page(browser: Any) -> Any:
    """Return a page with long timeouts: a busy machine is slow, and no test depends on speed."""
    page = browser.new_page()
    page.set_default_timeout(PATIENT)
    return page
