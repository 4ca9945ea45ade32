"""The files in `deploy/`, started with their own commands and used by a real client."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import openai
import pytest
from support.deployment import assert_consistent, assert_valid, dockerfile, written
from support.dialects import chat
from support.servers import DEADLINE, ROOT, Process, free_port, uvicorn_server, wait_for

from streamtool.settings import load

yaml = pytest.importorskip("yaml")
DEPLOY = ROOT / "deploy"
KEY = "a-long-secret-of-the-team"
STREAMS = 12


class Upstream:
    """An upstream that writes a word, and another one when it is released."""

    def __init__(self) -> None:
        self.asked = 0
        self.released = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive())["more_body"]:
            pass
        pieces = chat(["One ", "word."], "stop")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"".join(pieces[:2]), "more_body": True})
        self.asked += 1
        while not self.released.is_set():  # noqa: ASYNC110  another thread sets it
            await anyio.sleep(0.005)
        await send({"type": "http.response.body", "body": b"".join(pieces[2:])})


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    model = Upstream()
    yield model
    model.released.set()


def words(url: str, heard: list[str] | None = None, *, retries: int = 0) -> str:
    """Return the text of a stream; append its pieces to `heard` as they arrive."""
    with openai.OpenAI(
        base_url=f"{url}/v1", api_key=KEY, max_retries=retries, http_client=httpx.Client(trust_env=False, timeout=60)
    ) as asks:
        stream = asks.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}], stream=True)
        said = ""
        for chunk in stream:
            for choice in chunk.choices:
                said += choice.delta.content or ""
                if heard is not None and choice.delta.content:
                    heard.append(choice.delta.content)
        return said


@contextmanager
def started(
    argv: list[str], env: dict[str, str], url: str, stop: int = signal.SIGTERM
) -> Iterator[subprocess.Popen[str]]:
    """Run a process that serves `url`; stop it with its signal, and check that it exits."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STREAMTOOL_")}
    kept["STREAMTOOL_FORMATS"] = "tool_call"  # fast to compile
    kept["STREAMTOOL_RECOGNIZE"] = "false"  # the upstream counts its requests
    kept["STREAMTOOL_SHUTDOWN_DELAY"] = "1"
    child = subprocess.Popen(argv, env={**kept, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for(lambda: _answers(url) or child.poll() is not None, "it serves")
        assert child.poll() is None, child.communicate()[0]
        yield child
        child.send_signal(stop)
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", trust_env=False, timeout=DEADLINE).status_code < 500
    except httpx.HTTPError:
        return False


def test_the_image():
    """Every copied file exists and reaches the builder. tests/release runs the steps."""
    stages = dockerfile()
    assert [stage["FROM"][0].partition(" ")[0] for stage in stages] == ["python:3.13-alpine"] * 2
    build, last = stages
    ignored = (ROOT / ".dockerignore").read_text().split()
    for copied in build["COPY"]:
        for source in copied.split()[:-1]:
            assert (ROOT / source).exists()
            assert f"!{source}" in ignored
    assert last["COPY"] == ["--from=build /opt/streamtool /opt/streamtool"]
    assert last["USER"] == [re.search(r"-u (\d+)", last["RUN"][0])[1]]  # type: ignore[index]
    [extras] = re.findall(r"\[(.*)\]", build["RUN"][-1])
    declared = (ROOT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in declared for extra in extras.split(","))
    assert f"STREAMTOOL_LISTEN=0.0.0.0:{last['EXPOSE'][0]}" in last["ENV"]


def test_compose():
    """The variables are valid settings, and the services fit together; no secret has a default."""
    told = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = told["services"]
    ours = services["streamtool"]
    assert (DEPLOY / ours["build"]["context"]).resolve() == ROOT
    assert (ROOT / ours["build"]["dockerfile"]).is_file()
    assert ours["environment"]["STREAMTOOL_CLIENT_KEYS"].startswith("${STREAMTOOL_CLIENT_KEYS:?")
    environment = {
        name: re.sub(r"\$\{\w+:-(.*)\}|\$\{\w+:\?.*\}", lambda found: found[1] or KEY, value)
        for name, value in ours["environment"].items()
    }
    found = load("", {**environment, "STREAMTOOL_LISTEN": "0.0.0.0:8700"})
    assert found.metrics
    assert found.store.redis == "redis://redis:6379/0"
    assert set(ours["depends_on"]) | {"streamtool", "prometheus"} == set(services)
    assert services["redis"]["healthcheck"]["test"] == ["CMD", "redis-cli", "ping"]
    scraped = yaml.safe_load(told["configs"]["prometheus"]["content"])
    assert scraped["scrape_configs"][0]["static_configs"][0]["targets"] == ["streamtool:8700"]
    assert [Path(one).name for one in scraped["rule_files"]] == ["alerts.yml"]
    assert all(one.split(":")[0] == "127.0.0.1" for service in services.values() for one in service.get("ports", ()))
    assert float(ours["stop_grace_period"].rstrip("s")) > found.grace + found.shutdown_delay


def unit() -> dict[str, str]:
    lines = (DEPLOY / "streamtool.service").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def test_the_unit(tmp_path: Path, upstream: Upstream):
    found = unit()
    program, *argv = shlex.split(found["ExecStart"])
    assert program.endswith("/bin/streamtool")
    port, other = free_port(), "[upstream.v]"
    settings = tmp_path / "streamtool.toml"
    upstream.released.set()
    with uvicorn_server(upstream) as served:
        text = f'listen = "127.0.0.1:{port}"\nchat_template = "none"\n[upstream.u]\nurl = "{served.url}"\n'
        settings.write_text(text)
        argv = [sys.executable, "-m", "streamtool", *(str(settings) if word.startswith("/") else word for word in argv)]
        url = f"http://127.0.0.1:{port}"
        with started(argv, {"PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(tmp_path)}, url) as child:
            assert words(url) == "One word."
            settings.write_text(text + f'fallbacks = ["v"]\n{other}\nurl = "{served.url}"\n')
            subprocess.run(shlex.split(found["ExecReload"].replace("$MAINPID", str(child.pid))), check=True)
            wait_for(lambda: "v" in httpx.get(f"{url}/readyz", trust_env=False).text, "it has reloaded", 20)
    assert float(found["TimeoutStopSec"]) > 20.0


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_the_unit_is_valid(tmp_path: Path):
    program = shlex.split(unit()["ExecStart"])[0]
    text = (DEPLOY / "streamtool.service").read_text().replace(program, sys.executable)
    (tmp_path / "streamtool.service").write_text(text)
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "streamtool.service")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not [line for line in found.stderr.splitlines() if "streamtool.service" in line]


def test_the_manifests_are_valid():
    assert_valid(written().values())


def test_the_manifests_are_consistent():
    assert_consistent(written())


def test_a_pod(tmp_path: Path, upstream: Upstream):
    """Run the container's command with the settings of the ConfigMap: its probes, its metric, a client."""
    found = written()
    container = found["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    port = free_port()
    upstream.released.set()
    with uvicorn_server(upstream) as served:
        text = found["ConfigMap"]["data"]["streamtool.toml"]
        assert f":{container['ports'][0]['containerPort']}" in text
        text = text.replace("0.0.0.0:8700", f"127.0.0.1:{port}").replace("http://vllm:8000", served.url)
        text = text.replace('redis = "env:REDIS_URL"', "")  # covered by tests/store/test_redis_store.py
        (tmp_path / "streamtool.toml").write_text('chat_template = "none"\n' + text)
        mounted = container["volumeMounts"][0]["mountPath"]
        argv = [word.replace(mounted, str(tmp_path)) for word in container["args"]]
        env = {"TEAM_KEY": KEY, "METRICS_KEY": "another-secret-for-it", "PYTHONPATH": str(ROOT)}
        url = f"http://127.0.0.1:{port}"
        with started([sys.executable, "-m", "streamtool", *argv], env, url):
            for probe in ("readinessProbe", "livenessProbe"):
                path = container[probe]["httpGet"]["path"]
                assert httpx.get(url + path, headers={"host": "10.1.2.3:8700"}, trust_env=False).status_code == 200
            assert words(url) == "One word."
            [endpoint] = found["ServiceMonitor"]["spec"]["endpoints"]
            key = {"authorization": f"Bearer {env[endpoint['authorization']['credentials']['key']]}"}
            [metric] = found["HorizontalPodAutoscaler"]["spec"]["metrics"]
            idle = f"\n{metric['pods']['metric']['name']} 0.0\n"

            def is_idle() -> bool:
                return idle in httpx.get(url + endpoint["path"], headers=key, trust_env=False).text

            wait_for(is_idle, "its metric is there, and its request has ended")


@contextmanager
def nginx(folder: Path, port: int, first: int, second: int) -> Iterator[str]:
    text = (DEPLOY / "nginx.conf").read_text()
    text = (
        text.replace("listen 80;", f"listen 127.0.0.1:{port};")
        .replace(":8700", f":{first}")
        .replace(":8701", f":{second}")
    )
    (folder / "site.conf").write_text(text)
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.getuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"{user} daemon off; worker_processes 1; pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {temporary} include {folder}/site.conf; }}"
    )
    command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    with started(command, {}, f"http://127.0.0.1:{port}", signal.SIGQUIT):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def caddy(folder: Path, port: int, first: int, second: int) -> Iterator[str]:
    text = (DEPLOY / "Caddyfile").read_text()
    text = (
        text.replace(":80 {", f"http://127.0.0.1:{port} {{")
        .replace(":8700", f":{first}")
        .replace(":8701", f":{second}")
    )
    (folder / "Caddyfile").write_text("{\n\tadmin off\n}\n" + text)
    command = ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    env = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with started(command, env, f"http://127.0.0.1:{port}"):
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("front", [nginx, caddy], ids=lambda front: front.__name__)
def test_behind_a_reverse_proxy(tmp_path: Path, upstream: Upstream, front: Any):
    """Deltas pass one by one; when one of two replicas is killed, no stream of the other is affected."""
    name = front.__name__
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    folders = [tmp_path / part for part in ("one", "two", name)]
    for folder in folders:
        folder.mkdir()
    with uvicorn_server(upstream) as served, ThreadPoolExecutor(STREAMS) as pool:
        text = f'chat_template = "none"\n[upstream.u]\nurl = "{served.url}"\n'
        with (
            Process(folders[0], "uvicorn", text) as one,
            Process(folders[1], "uvicorn", text) as two,
            front(folders[2], free_port(), one.port, two.port) as url,
        ):
            heard: list[list[str]] = [[] for _ in range(STREAMS)]
            open_ = [pool.submit(words, url, each) for each in heard]
            wait_for(lambda: all(each == ["One "] for each in heard), "each delta arrives immediately", 20)
            one.stop(signal.SIGKILL)
            one.code()
            wait_for(lambda: sum(each.done() for each in open_) == STREAMS // 2, "its streams end", 20)
            upstream.released.set()
            ended = [_outcome(each) for each in open_]
            cut = ended.count("broke")
            if front is caddy:  # which ends a truncated reply as if it were complete
                cut += ended.count("One ")
            assert (ended.count("One word."), cut) == (STREAMS // 2, STREAMS // 2)
            assert [words(url, retries=8) for _ in range(4)] == ["One word."] * 4


def _outcome(one: Any) -> str:
    try:
        said: str = one.result(30)
    except (openai.APIError, httpx.TransportError):
        return "broke"
    return said
