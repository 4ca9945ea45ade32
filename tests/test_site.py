"""The documentation site builds without a warning, and every link and page is checked in a browser."""

import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from itertools import cycle, product
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, unquote, urldefrag, urljoin

import pytest
from support.browsers import CHROMIUM, launched, new_page
from support.servers import ROOT

from streamtool.cli.recipe import block, recipes

pytest.importorskip("zensical")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


class Links(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            elif value and name in ("id", "name"):
                self.ids.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "tools.docs_site", str(folder)], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as found:
        yield found


def found(page: Any, words: str) -> list[str]:
    """Return the links that the search finds, best first."""
    box = page.locator("input[role=combobox]")  # inside a shadow root, like the results
    box.wait_for(state="attached")
    page.locator(".md-search__button").first.click()
    box.fill(words)
    links = page.locator(f"a[href*='?h={quote_plus(words)}']")  # not those of an earlier search
    links.first.wait_for()
    return links.evaluate_all("(all) => all.map((one) => one.getAttribute('href'))")


def test_every_link_resolves(site):
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 40
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:|//", link) or path.name == "404.html":
                continue
            target, anchor = urldefrag(urljoin(f"/{path.relative_to(site).as_posix()}", link))
            file = site / unquote(target).lstrip("/")
            file = file / "index.html" if file.is_dir() else file
            assert file.exists(), (path.name, link)
            if anchor and file in pages and not anchor.startswith("__"):
                assert unquote(anchor) in pages[file].ids, (path.name, link)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.long)], ids=["some", "all"])
def test_pages_render_in_a_browser_without_other_hosts(site, served, browser, step):
    errors: list[str] = []
    asked: set[str] = set()
    schemes = {scheme: new_page(browser) for scheme in ("light", "dark")}
    for scheme, page in schemes.items():
        page.emulate_media(color_scheme=scheme)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("request", lambda request: asked.add(request.url))
    pages = sorted(path for path in site.rglob("*.html") if path.name != "404.html")
    looks = list(product(schemes, (390, 1440)))
    shown = [(site / "index.html", look) for look in looks]
    shown += product(pages, looks) if step == 1 else zip(pages[::step], cycle(looks), strict=False)
    for path, (scheme, width) in shown:
        page = schemes[scheme]
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(f"{served}/{path.relative_to(site).as_posix()}")
        title, broken, overflow, ground = page.evaluate(
            "() => [document.querySelector('h1').textContent,"
            " [...document.images].filter((one) => !one.naturalWidth).map((one) => one.src),"
            " document.documentElement.scrollWidth - document.documentElement.clientWidth,"
            " document.body.getAttribute('data-md-color-scheme')]"
        )
        assert title, path.name
        assert broken == [], path.name
        assert overflow <= 0, (path.name, width)
        assert ground == {"light": "default", "dark": "slate"}[scheme], path.name
    assert errors == []
    assert {url for url in asked if url.startswith("http") and not url.startswith(served)} == set()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_formats_can_be_filtered_and_the_site_searched(served, browser):
    page = new_page(browser)
    page.goto(f"{served}/reference/formats.html")
    field = page.locator(".filter").first
    field.fill("deepseek")
    rows = page.locator("table:visible tbody tr:visible")
    page.wait_for_function("() => [...document.querySelectorAll('tbody tr')].some((row) => row.hidden)")
    assert rows.count() > 0
    assert found(page, "prefix cache")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_page_of_recipes_shows_the_steps_of_the_command_and_can_be_found(served, browser):
    page = new_page(browser)
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: {writeText: (text) => copied = text}})")
    page.goto(f"{served}/recipes.html")
    form = page.locator("form.recipe")
    shown = form.locator("pre")
    assert not page.locator("form.recipe + .highlight").is_visible(), "the example is shown twice"
    known = recipes()
    for client, server in product(known.clients.values(), known.servers.values()):
        form.locator("[name=client]").select_option(client.name)
        form.locator("[name=server]").select_option(server.name)
        assert shown.text_content() == block(client, server)
    form.locator("[name=model]").fill("org/qwen-$1:8b")
    assert shown.text_content() == block(client, server), "the name is invalid"
    form.locator("[name=model]").fill("org/qwen:8b")
    form.locator("[name=context]").fill("32768")
    assert shown.text_content() == block(client, server, "org/qwen:8b", 32768)
    form.locator("button").click()
    assert page.evaluate("copied") == shown.text_content()
    assert {link.rpartition("/")[2].partition("?")[0] for link in found(page, "claude code llama.cpp qwen")[:2]} == {
        "index.html",
        "recipes.html",
    }


def test_the_site_serves_its_pages_as_markdown(site):
    links = re.findall(r"\]\((?!https:)([^)#]+)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 40
    for link in links:
        assert (site / link).is_file(), link
    assert "<form" not in (site / "recipes.md").read_text(encoding="utf-8")
