"""The page in a real browser, over a socket: live exchanges, playback, buffering, retries, a hostile model, keys,
axe.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.browsers import CHROMIUM, PATIENT, launched
from support.continuing import Continuing, Fault, engine_of, settings_for
from support.inspected import CALL, TOOLS, inspected, model
from support.servers import ROOT, uvicorn_server

from streamtool.middleware import ToolMiddleware
from streamtool.proxy import Proxy
from streamtool.testing import Hold, Pause, ScriptedUpstream, text

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
DENIED = "I'm sorry, but I don't have access to any tools in this conversation."
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>"\'`${1}</pre></span>\u202e'
AXE = ROOT / "tests" / "node" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as found:
        yield found


class Site:
    """A proxy with the inspector, and a page that shows it."""

    def __init__(self, url: str, page: Any) -> None:
        self.url = url
        self.page = page
        self.errors: list[str] = []
        page.set_default_timeout(PATIENT)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.asked: list[str] = []
        self.client = httpx.Client(base_url=url, timeout=60)
        page.on("request", lambda request: self.asked.append(request.url))

    def ask(self, question: str = "What is the weather in Paris?", **fields: Any) -> str:
        messages = [{"role": "user", "content": question}]
        body = {"model": "m", "stream": True, "tools": TOOLS, "messages": messages, **fields}
        return self.client.post("/v1/chat/completions", json=body).text

    def open(self, part: str = "") -> Any:
        self.page.goto(f"{self.url}/inspect{part}")
        return self.page

    def show(self, id: int = 1) -> Any:
        page = self.open(f"#/exchange/{id}")
        page.wait_for_selector(".written span")
        return page


@pytest.fixture
def site(browser: Any) -> Iterator[Any]:
    with ExitStack() as stack:

        def made(upstream: Any, *, viewport: tuple[int, int] = (1280, 900), **options: Any) -> Site:
            given = {"inspect": True, "contents": True, **options}
            app = upstream if isinstance(upstream, ToolMiddleware) else Proxy(apps={"sample": upstream}, **given)
            served = stack.enter_context(uvicorn_server(app))
            context = browser.new_context(viewport={"width": viewport[0], "height": viewport[1]})
            stack.callback(context.close)
            found = Site(f"http://127.0.0.1:{served.port}", context.new_page())
            sites.append(found)
            stack.enter_context(found.client)
            return found

        sites: list[Site] = []
        yield made
        for one in sites:
            assert one.errors == [], "the page reports no error"
            assert {asked.split("/")[2] for asked in one.asked if asked.startswith("http")} <= {one.url.split("/")[2]}


def shown(page: Any, place: str) -> str:
    """Return the visible text of an element."""
    return page.evaluate(
        "(place) => [...document.querySelectorAll(`${place} span`)]"
        ".filter((span) => !span.classList.contains('future')).map((span) => span.textContent).join('')",
        place,
    )


def step(page: Any) -> dict[str, str]:
    """Return the details of the current delta."""
    return page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('.step dt')].map((dt) => [dt.textContent, dt.nextSibling.textContent]))"
    )


def test_an_exchange_appears_while_it_runs_and_grows(site):
    found = site(model(["Let me ", "look. ", "It ", "rains."]))
    page = found.open()
    page.wait_for_selector("#connection.live")
    assert "No exchanges yet" in page.text_content("#count")
    found.ask()
    page.wait_for_selector("#exchanges .outcome.text")
    page.click("#exchanges a")
    page.wait_for_selector(".written span")
    assert page.text_content(".written") == "Let me look. It rains."


def test_an_open_exchange_is_followed_to_its_end(site):
    upstream = ScriptedUpstream(
        text("One ", "two ", "three ", finish=None, done=False).then(Hold(), *text("four.").steps), text("ok")
    )

    async def app(scope: Any, receive: Any, send: Any) -> None:
        """Let the second request end the first one, in the loop that waits."""
        if upstream.requests:
            upstream.release()
        await upstream(scope, receive, send)

    found = site(app)
    page = found.open()
    page.wait_for_selector("#connection.live")
    page.evaluate(
        "(body) => { fetch('/v1/chat/completions', {method: 'POST', headers: {'content-type': 'application/json'}, body}) }",
        json.dumps({"model": "m", "stream": True, "tools": TOOLS, "messages": [{"role": "user", "content": "Count."}]}),
    )
    page.wait_for_selector("#exchanges .outcome.open")
    page.click("#exchanges a")
    page.context.grant_permissions(["clipboard-write"])
    page.click("text=Copy as curl")
    page.wait_for_function("() => document.querySelector('.done').textContent === 'Copied the command.'")
    found.ask()
    page.wait_for_function("() => document.querySelector('.written')?.textContent.endsWith('four.')")
    page.wait_for_function("() => document.querySelector('.facts-of').textContent.includes('Outcomeno call')")
    assert "One two three four." in page.text_content(".received")
    assert page.text_content(".done") == "Copied the command.", "the confirmation is still shown"


def test_stepping_shows_the_state_at_each_delta_and_the_reason_for_buffering(site):
    found = site(model(f"Let me look.\n{CALL}\n"))
    found.ask()
    page = found.show()
    assert shown(page, ".written") == "Let me look.\n<to", "the first delta that was buffered"
    page.keyboard.press("End")
    assert shown(page, ".received").split("\n")[1].startswith('● get_weather({"city": "Paris"}')
    page.keyboard.press("Home")
    assert (shown(page, ".written"), shown(page, ".received")) == ("Let ", "Let ")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert shown(page, ".written") == "Let me look.\n<to"
    assert shown(page, ".received") == "Let me look."
    assert step(page)["Buffered"] == "4 characters: it may become `<tool_call>`, `<tool_calls>`, `<tool:`, …"
    assert page.eval_on_selector_all(".held-now", "(all) => all.map((one) => one.textContent).join('')") == "\n<to"
    page.keyboard.press("ArrowLeft")
    assert step(page)["Buffered"] == "nothing"
    assert page.get_attribute("input[type=range]", "aria-valuetext").startswith("3 of ")
    page.keyboard.press("End")
    assert page.locator(".held-now").count() == 0
    assert page.locator(".written .waited").count() > 5, "buffered text stays shaded"
    page.hover(".written .argument:not(.waited) >> nth=-1")
    assert step(page)["Format"] == "tool_call: <tool_call> … </tool_call>"


def test_a_finished_exchange_is_loaded_once(site):
    """Hovering, selecting and playing do not load it again."""
    found = site(model(CALL))
    found.ask()
    page = found.show()
    page.wait_for_selector("#exchanges .outcome.calls")
    page.wait_for_timeout(500)
    assert sum(url.endswith("/exchanges/1") for url in found.asked) == 1


def test_playback_works_at_any_speed(site):
    found = site(ScriptedUpstream(text("word " * 5, finish=None, done=False).then(Pause(0.3), *text("end.").steps)))
    found.ask()
    page = found.show()
    page.keyboard.press("Home")
    page.select_option("[aria-label=Speed]", "100")
    page.click("text=Play")
    page.wait_for_function("() => !document.querySelector('.written .future')")
    assert page.text_content(".controls").startswith("|◀◀Play")


def test_a_rejected_attempt_is_shown_separately(site):
    found = site(model(DENIED, CALL))
    found.ask()
    page = found.show()
    assert "rejected: tools denied" in page.text_content(".facts-of")
    assert "was rejected: tools denied" in page.text_content(".notes")
    assert page.text_content(".written") == DENIED
    assert page.text_content(".received") == ""
    page.click("text=Attempt 2")
    assert page.text_content(".written") == CALL


def test_the_list_shows_what_was_asked_and_called(site):
    found = site(model("It rains.", CALL))
    found.ask("Does it rain in Paris?")
    found.ask()
    page = found.open()
    page.wait_for_function("() => document.querySelectorAll('#exchanges .title').length === 2")
    titles = page.eval_on_selector_all("#exchanges .title", "(all) => all.map((one) => one.textContent)")
    assert titles == ['get_weather({"city": "Paris"})', "Does it rain in Paris?"]
    assert page.eval_on_selector_all("#exchanges .outcome", "(all) => all.map((one) => one.textContent)") == [
        "1 call",
        "no call",
    ]
    page.click("#pause")
    found.ask("A third question")
    page.wait_for_timeout(600)
    assert page.locator("#exchanges li").count() == 2
    page.click("#pause")
    page.wait_for_function("() => document.querySelectorAll('#exchanges li').length === 3")
    page.click("#clear")
    page.wait_for_function("() => document.querySelector('#count').textContent === '0 of 3 exchanges'")


def test_the_timeline_is_zoomed_by_dragging_and_shows_a_reply_without_a_call_at_its_markup(site):
    found = site(model("Sure! I will use the tool.\n\n<tool>get_wether</tool> and more"))
    found.ask()
    found.open().wait_for_selector("#exchanges .outcome.text")
    page = found.show()
    assert shown(page, ".written") == "Sure! I will use the tool.\n\n<too", "the delta with the markup"
    assert "No call" in page.text_content(".band")
    box = page.locator(".strip").bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 40, steps=4)
    page.mouse.up()
    page.keyboard.press("End")
    for name in ("Zoom in", "Zoom out", "fit: show the whole reply"):
        page.click(f"[aria-label='{name}']")
    page.locator(".strip").dblclick()
    page.click("#tab-bytes")
    page.wait_for_selector(".bytes .same")
    page.check(".only-changes, #panel input[type=checkbox]")
    page.wait_for_selector(".bytes.only-changes")


def test_both_texts_and_the_timeline_are_above_the_fold(site):
    found = site(model(f"Let me look.\n{CALL}"), viewport=(1440, 900))
    found.ask()
    page = found.show()
    for place in (".band", ".strip", ".written", ".received"):
        box = page.locator(place).bounding_box()
        assert box["y"] + min(box["height"], 120) <= 900, place


def test_an_exchange_that_cannot_be_repeated_exactly_is_marked(site):
    app = inspected(model("It rains."))
    found = site(app)
    found.ask()
    app.observers.ring.exchanges["1"]._log.ids.clear()
    page = found.open("#/exchange/1")
    page.wait_for_selector("text=could not be repeated exactly (IndexError)")


def test_a_quotation_shows_its_reason(site):
    said = f"The page says {CALL.replace(chr(10), ' ')} somewhere."
    found = site(model(said))
    found.ask(said)
    page = found.show()
    assert "A call was recognized as a quotation and sent as text: behind text." in page.text_content(".notes")


def test_a_hostile_model_client_and_upstream_only_write_text(site):
    call = CALL.replace("Paris", json.dumps(HOSTILE)[1:-1])
    found = site(model(f"{HOSTILE}\n{call}", HOSTILE))
    found.ask(HOSTILE, model=HOSTILE)
    found.ask(HOSTILE, model=HOSTILE)
    page = found.show()
    assert HOSTILE in page.text_content(".written")
    found.show(2)
    assert "No call" in page.text_content(".verdict")
    found.show(1)
    for tab in ("prompt", "bytes", "requests", "timeline"):
        page.click(f"#tab-{tab}")
        page.wait_for_selector(f"#tab-{tab}[aria-selected=true]")
        page.wait_for_function("() => document.getElementById('panel').textContent.length > 20")
    page.goto(f"{found.url}/inspect#/exchange/{'%3Cimg%20src=x%20onerror=window.hacked=1%3E'}")
    page.wait_for_function("() => document.querySelector('.note')?.textContent.includes('does not exist')")
    page.goto(f"{found.url}/inspect#/try")
    page.wait_for_selector(".written span")
    page.fill("#try-text", f"<tool>{HOSTILE}")
    page.wait_for_function("() => document.querySelector('.verdict').textContent.includes('onerror')")
    page.fill("#try-text", HOSTILE)
    page.fill("#try-tools", json.dumps([{"name": "x", "description": HOSTILE}]))
    page.wait_for_function("(text) => document.querySelector('.written').textContent === text", arg=HOSTILE)
    assert page.evaluate("() => window.hacked") is None
    assert page.locator("main img, main script, #exchanges img").count() == 0
    found.errors = [error for error in found.errors if "404" not in error]


def test_ten_thousand_deltas_do_not_stall_the_page(site):
    found = site(ScriptedUpstream(text("word " * 8_000 + CALL, size=4)))
    found.ask()
    page = found.show()
    page.wait_for_function("() => document.querySelectorAll('.written span').length > 9000")
    page.evaluate("""() => {
        window.frames_ = [];
        let before = performance.now();
        const frame = (now) => { window.frames_.push(now - before); before = now; window.going = requestAnimationFrame(frame); };
        requestAnimationFrame(frame);
    }""")
    for _ in range(40):
        page.keyboard.press("ArrowLeft")
    page.select_option("[aria-label=Scale]", "delta")
    frames = page.evaluate("() => { cancelAnimationFrame(window.going); return window.frames_.slice(1); }")
    cost = page.evaluate("""() => {
        const slider = document.querySelector('.slider');
        const times = [];
        for (let i = 0; i < 60; i++) {
            const before = performance.now();
            slider.value = Number(slider.value) - 1;
            slider.dispatchEvent(new Event('input'));
            void document.querySelector('.written').offsetHeight;
            times.push(performance.now() - before);
        }
        return times.sort((a, b) => a - b);
    }""")
    print(
        f"frames {len(frames)}, worst {max(frames):.0f} ms; a step {cost[30]:.1f} ms, worst {cost[-1]:.1f} ms"
    )  # shown with -s
    assert int(page.get_attribute("input[type=range]", "max")) > 9_000


def test_two_hundred_exchanges_are_searched_and_filtered(site):
    found = site(model(*(["It rains."] * 199), CALL))
    for number in range(200):
        found.ask(model=f"model-{number % 7}")
    page = found.open()
    page.wait_for_function("() => document.querySelectorAll('#exchanges li').length === 200")
    page.click("[data-filter=called]")
    assert page.text_content("#count") == "1 of 200 exchanges"
    page.click("[data-filter=all]")
    page.keyboard.press("Tab")
    page.keyboard.press("/")
    page.keyboard.type("model-3 text")
    assert page.text_content("#count") == "28 of 200 exchanges"


def test_the_keyboard_is_sufficient(site):
    found = site(model("It rains.", CALL))
    found.ask()
    found.ask()
    page = found.open()
    page.wait_for_selector("#exchanges li")
    page.keyboard.press("/")
    for _ in range(20):
        if page.evaluate("() => document.activeElement.closest('#exchanges') !== null"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector(".written span")
    assert page.text_content("h2").startswith("Exchange 1 ")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert "Delta 2 at" in page.text_content(".picture [role=status]")
    page.keyboard.press("Tab")
    for _ in range(20):
        if page.evaluate("() => document.activeElement.getAttribute('role')") == "tab":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".session")
    assert page.evaluate("() => document.activeElement.textContent") == "Session"
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".message")
    assert page.evaluate("() => document.activeElement.textContent") == "Prompt"
    page.keyboard.press("Escape")
    page.wait_for_selector(".welcome")


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed (npm ci --prefix tests/node)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(site, scheme):
    found = site(model(f"<think>hm</think>Let me look.\n{CALL}", "It rains."))
    found.ask()
    page = found.page
    page.emulate_media(color_scheme=scheme)
    for part, ready in (("", "#exchanges li"), ("#/exchange/1", ".written span"), ("#/try", ".written span")):
        found.open(part)
        page.wait_for_selector(ready)
        serious(page)
    found.show()
    for tab in ("session", "prompt", "bytes", "requests"):
        page.click(f"#tab-{tab}")
        page.wait_for_selector("#panel pre")
        serious(page)


def serious(page: Any) -> None:
    """Fail for violations that axe-core rates serious or critical."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE.read_text())
    found = page.evaluate("() => axe.run()")
    worst = [
        (rule["id"], [node["html"][:120] for node in rule["nodes"][:3]])
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
    ]
    assert worst == []


@pytest.mark.parametrize("width", [390, 820, 1400])
def test_it_fits_screens_of_any_width(site, width):
    found = site(model(f"Let me look.\n{CALL}"), viewport=(width, 900))
    found.ask()
    page = found.show()
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert page.is_visible("#exchanges") == (width > 760)
    assert page.is_visible(".written")


def test_a_key_is_requested_and_kept_only_in_the_tab(site):
    found = site(model(CALL), client_keys={"ann": "key-of-ann"})
    httpx.post(
        f"{found.url}/v1/chat/completions",
        json={"model": "m", "stream": True, "tools": TOOLS, "messages": [{"role": "user", "content": "Hi"}]},
        headers={"authorization": "Bearer key-of-ann"},
    )
    page = found.open()
    page.wait_for_selector("#key[open]")
    assert page.is_hidden("#key-wrong")
    page.fill("#key-value", "key-of-bob")
    page.click("#key button")
    page.wait_for_selector("#key-wrong", state="visible")
    page.fill("#key-value", "key-of-ann")
    page.click("#key button")
    page.wait_for_selector("#exchanges li")
    assert page.evaluate("() => Object.keys(localStorage).length") == 0
    found.errors = [error for error in found.errors if "401" not in error]


def test_copies_are_a_test_case_and_a_curl_command(site):
    found = site(model(f"Let me look.\n{CALL}"))
    found.ask()
    page = found.show()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("text=Copy as test case")
    page.wait_for_function("() => document.querySelector('.done').textContent === 'Copied the test case.'")
    assert '~~~~ events\ntext "Let me look."\ncall get_weather' in page.evaluate("() => navigator.clipboard.readText()")
    page.click("text=Copy as curl")
    page.wait_for_function("() => document.querySelector('.done').textContent === 'Copied the command.'")
    line = page.evaluate("() => navigator.clipboard.readText()")
    assert line.startswith(f"curl -N {found.url}/v1/chat/completions ")
    with page.expect_download() as download:
        page.click("text=Save recording")
    lines = [json.loads(line) for line in Path(download.value.path()).read_text().splitlines()]
    assert (lines[0]["type"], lines[-1]["type"]) == ("exchange", "record")


def test_a_session_is_one_story_and_leads_to_its_exchanges(site):
    found = site(model(CALL, f"{HOSTILE} It rains."))
    found.ask()
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    question = {"role": "user", "content": "What is the weather in Paris?"}
    result = {"role": "tool", "tool_call_id": "c1", "content": HOSTILE}
    found.ask(messages=[question, {"role": "assistant", "tool_calls": [call]}, result])
    page = found.show(2)
    page.click("#tab-session")
    page.wait_for_selector(".session")
    told = page.eval_on_selector_all(".session li", "(all) => all.map((one) => one.className)")
    assert told == ["said user", "reply", "between", "said tool", "reply shown"]
    assert page.text_content(".session .shown .outcome") == "answer"
    assert HOSTILE in page.text_content(".session .tool")
    assert page.evaluate("() => window.hacked") is None
    page.click(".session a >> nth=0")
    page.wait_for_selector(".written span")
    assert page.text_content("h2").startswith("Exchange 1 ")


def test_the_seam_of_a_resumed_reply_is_marked(site):
    upstream = Continuing("llama.cpp", f"Let me look.\n{CALL}", Fault(40, "reset"))
    app = ToolMiddleware(upstream.app, settings=settings_for(upstream.kind, inspect=True, contents=True))
    app.templates.engines.note("u", engine_of(upstream.kind))
    found = site(app)
    found.ask()
    page = found.show()
    assert page.text_content(".verdict").startswith("The server broke off inside")
    page.click(".seam")
    assert "another attempt continues" in step(page)["Resumed"]


def test_without_contents_the_text_is_masked(site):
    found = site(model(f"Secret words.\n{CALL}"), contents=False)
    found.ask()
    page = found.show()
    assert set(page.text_content(".written")) == {"·"}
    page.wait_for_function("() => document.querySelector('.note').textContent.includes('contents = true')")
    assert "asked" not in page.text_content("#exchanges")
    assert page.text_content("h2") == "Exchange 1 m"
    page.keyboard.press("End")
    assert step(page)["State"] == "closed"


def test_the_first_how_to_works(site):
    """Follow docs/no-call.md step by step."""
    reply = 'Sure! I will use the weather tool now.\n\n<tool>get_wether</tool>\n<args>{"city": "Paris"}</args>'
    found = site(model("ok"))
    page = found.open("#/try")
    page.wait_for_selector(".written span")
    page.fill("#try-text", reply)
    page.wait_for_function("() => document.querySelector('main [role=status]').textContent.startsWith('0 calls')")
    assert page.text_content(".written") == reply
    assert page.text_content(".verdict").startswith(
        "No call. At character 41, `<tool>get_wether</tool>` looks like one"
    )
    kinds = page.eval_on_selector_all(".written span", "(all) => [...new Set(all.map((one) => one.classList[0]))]")
    assert kinds == ["text"]
    waited = page.eval_on_selector_all(".written .waited", "(all) => all.map((one) => [one.textContent, one.title])")
    assert any("<to" in piece and "`<tool_call>`" in why for piece, why in waited), waited
    page.fill("#try-tools", '["get_weather"]')
    page.fill("#try-text", CALL)
    page.wait_for_function("() => document.querySelector('main [role=status]').textContent.startsWith('1 call ')")
    page.fill("#try-text", CALL.replace("get_weather", "get_wether"))
    page.wait_for_function("() => document.querySelector('main [role=status]').textContent.startsWith('0 calls')")
