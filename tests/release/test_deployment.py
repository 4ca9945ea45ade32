"""The steps of the image, and the chart as Helm renders it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.deployment import DEPLOY, assert_consistent, assert_valid, by_kind, dockerfile, written
from support.installing import UV, env_of, run
from support.servers import ROOT, free_port, wait_for

pytestmark = pytest.mark.release

KEY = "a-long-secret-of-the-team"
LAYER_MB = 70.0
"""Maximum size of our layer; those of the base image have about 45 MB, and all together at most 120."""


def test_the_steps_of_the_image(tmp_path: Path) -> None:
    """In an empty folder, with the tests' Python in place of the image's."""
    build, last = dockerfile()
    for copied in build["COPY"]:
        *sources, into = copied.split()
        (tmp_path / into).mkdir(parents=True, exist_ok=True)
        for source in sources:
            inside = f"{ROOT / source}/." if (ROOT / source).is_dir() else str(ROOT / source)
            subprocess.run(["cp", "-r", inside, str(tmp_path / into)], check=True)
    tools = tmp_path / "tools-of-the-image"
    run(sys.executable, "-m", "venv", tools, cwd=tmp_path)
    path = f"{tools / 'bin'}:{os.environ['PATH']}"
    for step in build["RUN"]:
        run("sh", "-ec", re.sub(r"/(opt|dist)\b", rf"{tmp_path}/\1", step), cwd=tmp_path, PATH=path)
    installed = tmp_path / "opt" / "streamtool"
    assert not [file for file in installed.rglob("*") if file.name == "pip" or file.suffix == ".pyc"]
    size = sum(file.stat().st_size for file in installed.rglob("*") if file.is_file() and not file.is_symlink()) / 1e6
    print(f"\nlayer of the image: {size:.1f} MB")
    assert size <= LAYER_MB

    port = free_port()
    env = dict(pair.split("=", 1) for pair in last["ENV"])
    assert env.pop("PATH").startswith("/opt/streamtool/bin:")
    env |= {
        "STREAMTOOL_LISTEN": f"127.0.0.1:{port}",
        "STREAMTOOL_CLIENT_KEYS": KEY,
        "STREAMTOOL_UPSTREAM__MODEL__URL": "sample",
    }
    found = env_of(tmp_path, **env, PATH=f"{installed / 'bin'}:{os.environ['PATH']}")
    direct = {name: value for name, value in found.items() if not name.lower().endswith("_proxy")}
    argv = [*json.loads(last["ENTRYPOINT"][0]), *json.loads(last["CMD"][0])]
    (check,) = (json.loads(line.partition("CMD ")[2].replace("8700", str(port))) for line in last["HEALTHCHECK"])
    with (tmp_path / "log").open("w") as log:
        child = subprocess.Popen(
            [installed / "bin" / argv[0], *argv[1:]], cwd=tmp_path, env=direct, stdout=log, stderr=log
        )
    try:

        def healthy() -> bool:
            command = [installed / "bin" / check[0], *check[1:]]
            return subprocess.run(command, env=direct, check=False, timeout=30, capture_output=True).returncode == 0

        wait_for(lambda: child.poll() is not None or healthy(), "the health check succeeds", 60)
        assert child.poll() is None, (tmp_path / "log").read_text()
        url = f"http://127.0.0.1:{port}/v1/models"
        assert httpx.get(url, trust_env=False).status_code == 401
        assert httpx.get(url, trust_env=False, headers={"authorization": f"Bearer {KEY}"}).status_code == 200
    finally:
        child.terminate()
        child.wait(60)
    assert not healthy()


def rendered(values: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the objects of the chart, and what Helm's linter reports."""
    script = ROOT / "tests" / "support" / "helm_chart.py"
    command = [*UV, "run", "-q", "--no-project", "--with", "helm-python-sdk", "python", script, DEPLOY / "helm"]
    objects, report = run(*command, json.dumps(values), cwd=ROOT).splitlines()
    return by_kind(json.loads(objects).values()), json.loads(report)


def test_the_chart_makes_the_manifests() -> None:
    found, report = rendered(
        {"image": {"tag": "latest"}, "autoscaling": {"enabled": True}, "monitor": {"enabled": True}}
    )
    assert report["errors"] == []
    assert [one["error"] for one in report["messages"]] == ["icon is recommended"]
    assert_valid(found.values())
    assert_consistent(found)
    pod = found["Deployment"]["spec"]["template"]
    assert len(pod["metadata"].pop("annotations")["checksum/settings"]) == 64
    found["Deployment"]["spec"]["replicas"] = 2  # left to the autoscaler
    text = found["ConfigMap"]["data"]["streamtool.toml"]
    found["ConfigMap"]["data"]["streamtool.toml"] = re.sub(r"^ +$", "", text, flags=re.MULTILINE)
    assert found == written()


def test_the_chart_with_other_values() -> None:
    found, _ = rendered({"replicas": 5, "secret": "other", "service": {"port": 8080}})
    assert_valid(found.values())
    assert set(found) == {"ConfigMap", "Service", "Deployment", "PodDisruptionBudget"}
    assert found["Deployment"]["spec"]["replicas"] == 5
    container = found["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert container["envFrom"] == [{"secretRef": {"name": "other"}}]
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert container["image"] == f"streamtool:{version[1]}"


def test_a_wrong_value_is_refused() -> None:
    with pytest.raises(AssertionError, match="replica"):
        rendered({"replica": 5})
