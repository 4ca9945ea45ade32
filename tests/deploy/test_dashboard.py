"""`deploy/grafana.json` and `deploy/alerts.yml` use only metrics that `/metrics` of a real server has."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import openai
import pytest
from attrs import evolve
from support.failing_upstreams import failing, good, settings, to_openai
from support.servers import ROOT, uvicorn_server, wait_for

from streamtool.core.errors import UpstreamError
from streamtool.exchange.record import Interruption, Record
from streamtool.proxy import Proxy
from streamtool.settings import Settings, load

prometheus_client = pytest.importorskip("prometheus_client")
promql = pytest.importorskip("promql_parser")
yaml = pytest.importorskip("yaml")

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from streamtool.observe.metrics import Metrics  # noqa: E402

DEPLOY = ROOT / "deploy"
OURS = "job"
"""Label added by Prometheus."""
_VARIABLES = {"$__rate_interval": "5m", "$job": ".*", "$client": ".*"}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads((DEPLOY / "grafana.json").read_text())["panels"] if panel["type"] != "row"]


def queries() -> Iterator[str]:
    for panel in panels():
        for target in panel["targets"]:
            query = target["expr"]
            for name, value in _VARIABLES.items():
                query = query.replace(name, value)
            yield query
    for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def selected(query: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the metrics of a query, with the labels that it selects or groups by."""
    promql.parse(query)
    for name, chosen in re.findall(r"(streamtool_\w+)(?:\{([^}]*)\})?", query):
        labels = set(re.findall(r"(\w+)\s*[=!]~?", chosen))
        yield name, labels
    names = re.findall(r"streamtool_\w+", query)
    for grouped in re.findall(r"by \(([^)]*)\)", query):
        for name in names:
            yield name, {label.strip() for label in grouped.split(",")}


@pytest.fixture(scope="module")
def page() -> str:
    """Return the metrics of a proxy whose first upstream has failed once."""
    records: list[Record] = []
    first = failing(503)
    with uvicorn_server(first) as one, uvicorn_server(good()) as other:
        chosen = evolve(settings(one.url, other.url, more="circuit.failures = 1"), metrics=True)
        with uvicorn_server(Proxy(chosen, on_exchange=records.append)) as served:
            assert to_openai(served.url, stream=True) == ("good", 1)
            wait_for(lambda: records, "the exchange ends")
            return httpx.get(f"{served.url}/metrics", trust_env=False).text


@pytest.fixture(scope="module")
def every_label() -> Mapping[str, set[str]]:
    """Return the labels of each sample, after an exchange that sets all metrics."""
    records: list[Record] = []
    with uvicorn_server(good()) as model, uvicorn_server(Proxy(settings(model.url), on_exchange=records.append)) as url:
        to_openai(url.url, stream=True)
        wait_for(lambda: records, "the exchange ends")
    registry = prometheus_client.CollectorRegistry()
    metrics, some = Metrics(registry), (("some", 1),)
    metrics.began()
    metrics.upstream_failed("main")
    metrics.upstream_is("main", "failing")
    metrics.store_failed("read")
    metrics(
        evolve(
            records[0], attempts=("no call",), resumed=(Interruption("died", 1, "text", 1.0),), unmet="no call", repairs=("some",), discarded=some, quoted=some,
            error=UpstreamError("gone"), first_byte=1.0, first_call=1.0, tool_prompt=True,
        )
    )  # fmt: skip
    text = prometheus_client.generate_latest(registry).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name: set(sample.labels) for sample in samples}


def test_queried_metrics_exist(page: str, every_label: Mapping[str, set[str]]):
    families = {family.name for family in text_string_to_metric_families(page)}
    asked = set()
    for query in queries():
        for name, labels in selected(query):
            asked.add(re.sub(r"_(total|bucket)$", "", name))
            assert labels <= every_label[name] | {OURS}, (query, name)
    assert asked <= families
    assert families >= {re.sub(r"_(total|bucket|sum|count|created)$", "", name) for name in every_label}


def test_every_metric_is_on_the_dashboard(every_label: Mapping[str, set[str]]):
    shown = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    for name in every_label:
        assert re.sub(r"_(sum|count|created|bucket)$", "", name) in shown, name


def test_the_dashboard_is_valid_for_grafana():
    sdk = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    given = json.loads((DEPLOY / "grafana.json").read_text())
    read = sdk.Dashboard.from_json(given)
    assert [panel.title for panel in read.panels] == [panel["title"] for panel in given["panels"]]
    assert [one.name for one in read.templating.list_val] == ["datasource", "job", "client"]
    taken = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in given["panels"]]
    assert len(set(taken)) == len({panel["id"] for panel in given["panels"]}) == len(given["panels"])
    assert all(panel["description"] and panel["datasource"]["uid"] == "${datasource}" for panel in panels())


def test_legends_use_labels_of_their_query():
    for panel in panels():
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert named <= {label for _, labels in selected_in(target["expr"]) for label in labels}, panel["title"]


def selected_in(query: str) -> Iterator[tuple[str, set[str]]]:
    for name, value in _VARIABLES.items():
        query = query.replace(name, value)
    return selected(query)


def test_the_state_of_upstreams_is_exported():
    """A failing one, one that recovers, and one removed from the settings."""
    registry = prometheus_client.REGISTRY

    def up(name: str) -> float | None:
        found: float | None = registry.get_sample_value("streamtool_upstream_up", {"upstream": name})
        return found

    bad, well = failing(503), good()
    serving = [bad]

    async def first(scope: Any, receive: Any, send: Any) -> None:
        await serving[-1](scope, receive, send)

    with uvicorn_server(first) as one, uvicorn_server(well) as other:
        chosen = evolve(settings(one.url, other.url, more="circuit = {failures = 1, seconds = 0.01}"), metrics=True)
        proxy = Proxy(chosen)
        with uvicorn_server(proxy) as served:
            assert up("u0") == up("u1") == 1.0
            before = registry.get_sample_value("streamtool_upstream_failures_total", {"upstream": "u0"}) or 0.0
            to_openai(served.url, stream=True)
            assert (up("u0"), up("u1")) == (0.0, 1.0)
            assert registry.get_sample_value("streamtool_upstream_failures_total", {"upstream": "u0"}) == before + 1
            serving.append(well)
            wait_for(lambda: to_openai(served.url, stream=True) and up("u0") == 1.0, "it answers again")
            serving.append(bad)
            to_openai(served.url, stream=True)
            assert up("u0") == 0.0
            Proxy(Settings(metrics=True)).replace(proxy)
            assert up("u0") == 1.0
            to_openai(served.url, stream=True)
            assert up("u0") == 1.0  # the replaced upstream no longer reports


def test_a_rate_limited_request_is_counted_under_the_name_of_the_key():
    registry = prometheus_client.REGISTRY
    with uvicorn_server(good()) as model:
        text = f'metrics = true\nlimits.requests_per_minute = 1\n[client_keys]\nteam = "x"\n[upstream.u]\nurl = "{model.url}"'
        chosen = load(text, {}, {})
        with uvicorn_server(Proxy(chosen)) as served:
            to_openai(served.url, stream=True)
            with pytest.raises(openai.RateLimitError):
                to_openai(served.url, stream=True)
            labels = {"status": "429", "client": "team"}
            wait_for(lambda: registry.get_sample_value("streamtool_errors_total", labels) == 1, "it is counted")
