"""`streamtool demo --page` for a new user: a browser that watches from the start."""

import re
import signal
import subprocess
import sys

import pytest
from support.browsers import CHROMIUM, launched, new_page
from support.servers import DEADLINE, ROOT


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_exchange_is_the_first_thing_shown():
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "streamtool", "demo", "--page"], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        env={"PATH": "/usr/bin:/bin", "BROWSER": "true"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = ""
        while not url:
            line = process.stdout.readline()
            assert line, "the demo prints the URL of the page"
            found = re.search(r"http://127\.0\.0\.1:\d+/inspect#/first", line)
            url = found[0] if found else ""
        with launched() as browser:
            page = new_page(browser)
            page.goto(url)
            page.wait_for_selector("#exchanges .outcome.calls")
            page.wait_for_function("() => document.querySelector('.received')?.textContent.includes('● get_weather(')")
            page.wait_for_function("() => document.querySelectorAll('#exchanges li').length === 2")
            assert page.text_content("h2").startswith("Exchange 1 ")
            assert page.locator(".written .waited").count() > 0
        while (line := process.stdout.readline()) and "Play the demo back" not in line:
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 0
    finally:
        process.kill()
        process.wait(DEADLINE)
        process.stdout.close()
