"""Reads the files in `deploy/`, and checks Kubernetes objects."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from support.servers import ROOT

DEPLOY = ROOT / "deploy"


def dockerfile() -> list[dict[str, list[str]]]:
    """Return the stages of the Dockerfile: instruction → what follows it, in order."""
    stages: list[dict[str, list[str]]] = []
    for line in (DEPLOY / "Dockerfile").read_text().splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stages.append({})
        if stages and word:
            stages[-1].setdefault(word, []).append(rest)
    return stages


def by_kind(texts: Iterable[str]) -> dict[str, Any]:
    """Return kind → object."""
    yaml = pytest.importorskip("yaml")
    return {one["kind"]: one for text in texts for one in yaml.safe_load_all(text) if one}


def written() -> dict[str, Any]:
    """Return the manifests in `deploy/kubernetes`."""
    return by_kind(file.read_text() for file in sorted((DEPLOY / "kubernetes").glob("*.yaml")))


def assert_valid(objects: Iterable[Mapping[str, Any]]) -> None:
    """Compare the objects with Kubernetes's schemas."""
    validator = pytest.importorskip("kubernetes_validate")
    for one in objects:
        if one["kind"] != "ServiceMonitor":  # a custom resource of the operator
            validator.validate(one, validator.latest_version(), strict=True)


def assert_consistent(found: Mapping[str, Any]) -> None:
    """Check that selectors find their pods, and that times, ports, names and keys fit together."""
    pod = found["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    for selector in (
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    monitored = found["ServiceMonitor"]["spec"]
    assert monitored["selector"]["matchLabels"].items() <= found["Service"]["metadata"]["labels"].items()
    [endpoint], [port] = monitored["endpoints"], found["Service"]["spec"]["ports"]
    assert endpoint["port"] == port["name"]
    text = found["ConfigMap"]["data"]["streamtool.toml"]
    grace = float(re.search(r"grace = (\d+)", text)[1])  # type: ignore[index]
    waits = float(pod["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["spec"]["terminationGracePeriodSeconds"] > grace + waits
    assert f"env:{endpoint['authorization']['credentials']['key']}" in text
    assert pod["spec"]["volumes"][0]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    (source,) = pod["spec"]["containers"][0]["envFrom"]
    assert source["secretRef"]["name"] == endpoint["authorization"]["credentials"]["name"]
    assert found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == found["Deployment"]["metadata"]["name"]
