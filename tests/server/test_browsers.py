"""Web pages are not clients unless the settings allow them: hosts, origins, content types and preflights, over
sockets.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from support.servers import Served, hypercorn_server, uvicorn_server

from streamtool.core.errors import SettingsError
from streamtool.proxy import Proxy
from streamtool.settings import Settings, load

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
BODY = {
    CHAT: {"model": "sample", "messages": [{"role": "user", "content": "Hello."}]},
    MESSAGES: {"model": "sample", "max_tokens": 99, "messages": [{"role": "user", "content": "Hello."}]},
    RESPONSES: {"model": "sample", "input": "Hello."},
}
APP = "https://app.example"
SENT_BY_SDKS = (
    "anthropic-dangerous-direct-browser-access,anthropic-version,authorization,content-type,x-api-key,"
    "x-stainless-arch,x-stainless-helper-method,x-stainless-lang,x-stainless-os,x-stainless-package-version,"
    "x-stainless-retry-count,x-stainless-runtime,x-stainless-runtime-version,x-stainless-timeout"
)
Serve = Callable[..., Served]


@pytest.fixture(params=[uvicorn_server, hypercorn_server], ids=["uvicorn", "hypercorn"])
def serve(request: pytest.FixtureRequest) -> Iterator[Serve]:
    """Return a function that serves a proxy with these settings."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(request.param(Proxy(**settings)))


def send(served: Served, path: str = CHAT, method: str = "POST", **headers: str | None) -> httpx.Response:
    """Send a request with these headers; None leaves one out."""
    named = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    body = json.dumps(BODY[path]).encode() if method == "POST" else None
    with httpx.Client(trust_env=False) as client:
        request = client.build_request(method, served.url + path, content=body)
        for name, value in named.items():
            if value is not None:
                request.headers[name] = value
        return client.send(request)


def message_of(answer: httpx.Response) -> str:
    return answer.json()["error"]["message"]


def test_requests_from_foreign_pages_are_rejected(serve: Serve):
    served = serve()
    for headers in (
        {"origin": "https://evil.example", "content_type": "text/plain"},
        {"origin": "https://evil.example", "content_type": None},  # a Blob without a type
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:3000"},
        {"origin": "https://evil.example", "sec_fetch_site": "cross-site"},
        {"origin": "http://localhost:3000", "sec_fetch_site": "same-site"},
        {"sec_fetch_site": "cross-site"},
    ):
        answer = send(served, **headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_origin"), headers
        assert "cors_origins" in message_of(answer)
        assert "access-control-allow-origin" not in answer.headers


def test_scripts_and_same_origin_pages_are_served(serve: Serve):
    served = serve()
    own = f"localhost:{served.port}"
    for headers in (
        {},
        {"content_type": None},
        {"content_type": "application/json; charset=utf-8"},
        {"content_type": "application/vnd.api+json"},
        {"sec_fetch_mode": "cors"},  # as sent by fetch in Node
        {"sec_fetch_site": "none"},
        {"origin": f"http://{own}", "host": own},
        {"origin": f"http://{own}", "host": own, "sec_fetch_site": "same-origin"},
        {"origin": "https://tools.example", "sec_fetch_site": "same-origin"},  # a reverse proxy has replaced the host
        {"origin": "http://127.0.0.1", "host": "127.0.0.1:80"},
    ):
        assert send(served, **headers).status_code == 200, headers


def test_content_types_of_forms_are_rejected(serve: Serve):
    served = serve()
    for kind in ("text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = send(served, content_type=kind)
        assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_content_type")
        assert "content-type: application/json" in message_of(answer)
        for path in ("/v1/messages/count_tokens", "/v1/responses/compact", "/v1/conversations", "/v1/completions"):
            with httpx.Client(trust_env=False) as client:
                assert client.post(served.url + path, content=b"{}", headers={"content-type": kind}).status_code == 415


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8700", "localhost.evil.example", "127.0.0.1.evil.example"]
)
def test_unknown_host_names_are_rejected(serve: Serve, host: str):
    served = serve(cors_origins=[APP])
    for path, method in ((CHAT, "POST"), ("/v1/models", "GET"), (CHAT, "OPTIONS"), ("/elsewhere", "GET")):
        answer = send(served, path, method, host=host, origin=APP, access_control_request_method="POST")
        assert (answer.status_code, answer.json()["error"]["code"]) == (421, "unknown_host")
        assert "the hosts setting" in message_of(answer)
    assert send(served, "/healthz", "GET", host=host).status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "app.localhost", "localhost.", "127.0.0.1", "192.168.0.7:8700", "[::1]:8700"]
)
def test_loopback_names_and_addresses_are_allowed(serve: Serve, host: str):
    assert send(serve(), host=host).status_code == 200


def test_host_names_of_the_settings_are_allowed(serve: Serve):
    served = serve(listen="box.lan:8700", insecure=True, hosts=["Proxy.example", "*.tools.example"])
    for host in ("box.lan:8700", "proxy.example", "a.tools.example:443", "localhost"):
        assert send(served, host=host).status_code == 200, host
    assert send(served, host="tools.example").status_code == 421


def test_with_keys_any_host_name_is_allowed_unless_hosts_are_set(serve: Serve):
    served = serve(client_keys=["k"])
    assert send(served, host="proxy.example", x_api_key="k").status_code == 200
    assert send(served, host="proxy.example").status_code == 401
    assert send(served, host="proxy.example", x_api_key="k", origin="https://evil.example").status_code == 403
    narrow = serve(client_keys=["k"], hosts=["proxy.example"])
    assert send(narrow, host="proxy.example", x_api_key="k").status_code == 200
    assert send(narrow, host="other.example", x_api_key="k").status_code == 421


def test_a_preflight_of_an_allowed_origin_is_answered_without_a_key(serve: Serve):
    served = serve(client_keys=["k"], cors_origins=[APP, "http://localhost:*", "app://*"])
    for origin in (APP, "http://localhost:5173", "app://obsidian.md"):
        for path in (CHAT, MESSAGES, RESPONSES, "/v1/models"):
            answer = send(
                served, path, "OPTIONS", content_type=None, origin=origin, access_control_request_method="POST",
                access_control_request_headers=SENT_BY_SDKS,
            )  # fmt: skip
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == origin
            assert answer.headers["access-control-allow-methods"] == "POST"
            assert answer.headers["access-control-allow-headers"] == SENT_BY_SDKS
            assert "origin" in answer.headers["vary"]
            assert "access-control-allow-credentials" not in answer.headers


def test_a_preflight_of_any_other_origin_is_rejected(serve: Serve):
    for served in (serve(), serve(cors_origins=[APP])):
        for origin in ("https://evil.example", "https://app.example.evil.example", "http://app.example", "null"):
            answer = send(served, CHAT, "OPTIONS", origin=origin, access_control_request_method="POST")
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_origin")
            assert "access-control-allow-origin" not in answer.headers


def test_a_page_of_an_allowed_origin_reads_replies_and_errors(serve: Serve):
    served = serve(client_keys=["k"], cors_origins=[APP])
    page: dict[str, Any] = {"origin": APP, "sec_fetch_site": "cross-site"}
    for path in (CHAT, MESSAGES, RESPONSES):
        answers = send(served, path, **page, authorization="Bearer k"), send(served, path, **page)
        assert [answer.status_code for answer in answers] == [200, 401]
        for answer in answers:
            assert answer.headers["access-control-allow-origin"] == APP
            assert answer.headers["access-control-expose-headers"] == "*"
            assert "origin" in answer.headers["vary"]
    assert send(served, "/v1/models", "GET", **page, x_api_key="k").headers["access-control-allow-origin"] == APP
    assert send(served, "/healthz", "GET", **page).headers["access-control-allow-origin"] == APP
    assert send(served, x_api_key="k").headers["vary"] == "origin"  # a cache must not serve this response to a page


def test_all_origins_may_be_allowed(serve: Serve):
    served = serve(cors_origins=["*"])
    for origin in ("https://any.example", "null"):
        assert send(served, origin=origin).headers["access-control-allow-origin"] == origin


def test_a_rejection_has_the_error_format_of_its_protocol(serve: Serve):
    served = serve()
    foreign = {path: send(served, path, origin="https://evil.example").json() for path in (CHAT, MESSAGES, RESPONSES)}
    assert foreign[CHAT]["error"]["type"] == foreign[RESPONSES]["error"]["type"] == "permission_error"
    assert (foreign[MESSAGES]["type"], foreign[MESSAGES]["error"]["type"]) == ("error", "permission_error")
    assert send(served, MESSAGES, content_type="text/plain").json()["error"]["type"] == "invalid_request_error"
    assert send(served, MESSAGES, host="evil.example").json()["error"]["type"] == "invalid_request_error"


def test_an_invalid_origin_or_host_is_named():
    assert Settings(cors_origins=["HTTPS://App.example"]).cors_origins == (APP,)
    assert load(environ={"STREAMTOOL_HOSTS": "a.example, B.example"}).hosts == ("a.example", "b.example")
    for origin in ("app.example", "https://app.example/", "https://me@app.example", ""):
        with pytest.raises(SettingsError, match=r"cors_origins\[0\]: expected"):
            Settings(cors_origins=[origin])
    for host in ("https://app.example", "app.example:80", "a b", ""):
        with pytest.raises(SettingsError, match=r"hosts\[0\]: expected"):
            Settings(hosts=[host])
