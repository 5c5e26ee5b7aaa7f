"""The metrics in contrib/: every series that dashboard, alert rules and documentation name is exported.

PromQL is not parsed: `named` finds the names of series and of labels among everything else, by Prometheus' "Querying
basics" and "Operators". promtool judges the rest, in interop/test_promtool.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnsqd.broker.registry import Registry
from gnsqd.log import Level, Logger
from gnsqd.observe.memory import MemoryStats
from gnsqd.observe.prometheus import _FIGURES, MetricsPage
from gnsqd.options import OPTIONS, Options
from kit.exposition import OPENMETRICS, families
from pyspark_nsq.progress import Progress, QueryMetrics
from unit.observe.clients import ShownClient

CONTRIB = Path(__file__).resolve().parents[3] / "contrib"
DASHBOARD = CONTRIB / "grafana" / "gnsqd-dashboard.json"
OF_PIPELINES = CONTRIB / "grafana" / "gnsq-pipeline-dashboard.json"
ALERTS = CONTRIB / "grafana" / "gnsqd-alerts.yml"
SCRAPE_CONFIG = CONTRIB / "prometheus" / "gnsqd.yml"
DOCUMENT = CONTRIB / "docs" / "metrics.md"

OPERATORS = {"and", "or", "unless", "bool", "offset"}
OF_PROMETHEUS = {"job", "instance"}  # labels that every series has there

STRING_OR_RANGE = re.compile(r"""("(\\.|[^"\\])*"|'(\\.|[^'\\])*'|\[[^\]]*\])""")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right) *\(([^)]*)\)")
SERIES = re.compile(r"\b([a-zA-Z_:][\w:]*)\b(?! *\()(?:{([^}]*)})?")  # not a function, with its selector

EACH_DASHBOARD = pytest.mark.parametrize("path", [DASHBOARD, OF_PIPELINES], ids=["gnsqd", "gnsq-pipeline"])

Named = dict[str, set[str]]


def named(expression: str) -> Named:
    """Returns the series of an expression, each with the labels that it must have, those of groups included."""
    text = STRING_OR_RANGE.sub("", expression)
    grouping = {label for labels in GROUPING.findall(text) for label in re.findall(r"\w+", labels)}
    text = GROUPING.sub("", text)
    if variable := re.fullmatch(r"label_values\((.*), (\w+)\)", text):
        text, grouping = variable[1], {variable[2]}
    assert not re.search(r"(^|[^\w:]){", text), f"a selector without a name in {expression}"
    return {
        name: {*re.findall(r"\w+", selector)} | grouping
        for name, selector in SERIES.findall(text)
        if name not in OPERATORS
    }


# What is exported


def _labels(page: Iterable[Any]) -> Named:
    found: Named = {}
    for family in page:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


LOG = Logger("", Level.INFO)
EXPIRIES = {"server.pem": 1.8e9}.copy


def _page(
    registry: Registry, options: Options, accept: str = "", expiries: Callable[[], Mapping[str, float]] = dict
) -> list[Any]:
    registry.get_topic("t").get_channel("c").add_client(ShownClient(1))
    clients = [ShownClient(2, pub_counts={"t": 1})]
    lookupds = {"127.0.0.1:4160": True}.copy
    metrics = MetricsPage(registry, options, MemoryStats(), lambda: clients, lambda: 1, {}, lookupds, LOG, expiries)
    return families(metrics.render(accept)[0])


@pytest.fixture
def exported(registry: Registry, options: Options) -> Named:
    """Returns every series with its labels that there can be, from a page with everything on it."""
    options.max_channel_depth = options.min_free_disk = options.max_attempts = 1
    options.metrics_clients = True
    registry.idle_actions = {"delete": 1}
    registry.store_figures = lambda: dict.fromkeys(_FIGURES, 0.0)
    options.e2e_processing_latency_percentiles = [0.99, 0.95]
    return _labels(_page(registry, options, expiries=EXPIRIES)) | {"up": set()}


@pytest.fixture
def exported_by_default(registry: Registry, options: Options) -> Named:
    registry.disk_figures = lambda: {name: 0.0 for name in _FIGURES if not name.startswith("log_store")}
    return _labels(_page(registry, options)) | {"up": set()}


@pytest.fixture
def exported_by_pipelines() -> Named:
    metrics, key = QueryMetrics(), ("t", "n:4150")
    metrics.add("archive", Progress(1, "2026-11-21T20:41:28Z", 1, 1.0, {key: 1}, 0, 0, {key: 1}))
    return _labels(metrics.registry.collect())


def assert_exported(expression: str, exported: Named) -> None:
    series = named(expression)
    assert series, expression
    for name, of_series in series.items():
        assert name in exported, f"no {name}: {expression}"
        assert of_series <= exported[name] | OF_PROMETHEUS, f"{name} has not all of {of_series}: {expression}"


# The dashboard


def dashboard(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def panels(path: Path) -> Iterator[Any]:
    yield from (panel for panel in dashboard(path)["panels"] if panel["type"] != "row")


@pytest.fixture
def shown(request: pytest.FixtureRequest, path: Path) -> Named:
    found: Named = request.getfixturevalue("exported" if path == DASHBOARD else "exported_by_pipelines")
    return found


@EACH_DASHBOARD
def test_dashboard_shows_only_what_is_exported(path: Path, shown: Named) -> None:
    expressions = [target["expr"] for panel in panels(path) for target in panel["targets"]]
    assert len(expressions) > (30 if path == DASHBOARD else 10)
    expressions += [annotation["expr"] for annotation in dashboard(path)["annotations"]["list"]]
    variables = [variable for variable in dashboard(path)["templating"]["list"] if variable["type"] == "query"]
    for variable in variables:
        assert variable["query"]["query"] == variable["definition"]
        expressions.append(variable["definition"])
    for expression in expressions:
        assert_exported(expression, shown)


def test_dashboard_of_pipelines_shows_every_series(exported_by_pipelines: Named) -> None:
    named_there = {
        name for panel in panels(OF_PIPELINES) for target in panel["targets"] for name in named(target["expr"])
    }
    created = {name for name in exported_by_pipelines if name.endswith("_created")}
    assert exported_by_pipelines.keys() - created - named_there == {
        "gnsq_pipeline_batches_total",
        "gnsq_pipeline_last_batch",
    }


@EACH_DASHBOARD
def test_legends_name_labels_that_are_left(path: Path, shown: Named) -> None:
    for panel in panels(path):
        for target in panel["targets"]:
            groups = re.findall(r"\bby \(([\w, ]+)\)", target["expr"])
            (name,) = {*named(target["expr"])} if len(named(target["expr"])) == 1 else [""]
            left = set(groups[0].split(", ")) if groups else shown.get(name, set()) | OF_PROMETHEUS
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= left, target


def test_panels_that_need_an_option_say_so(exported_by_default: Named) -> None:
    needing = 0
    for panel in panels(DASHBOARD):
        if any(name not in exported_by_default for target in panel["targets"] for name in named(target["expr"])):
            needing += 1
            flags = re.findall(r"Needs --([\w-]+)\.", panel["description"])
            assert flags, panel["title"]
            assert set(flags) <= {option.flag for option in OPTIONS}
    assert needing >= 4


@EACH_DASHBOARD
def test_variables_are_defined(path: Path) -> None:
    defined = {variable["name"] for variable in dashboard(path)["templating"]["list"]} | {"__rate_interval", "__all"}
    assert set(re.findall(r"\$\{?(\w+)", path.read_text("utf-8"))) == defined


# The alert rules


def rules() -> list[Any]:
    return [rule for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"] for rule in group["rules"]]


def test_alerts_watch_only_what_is_exported_and_few_need_an_option(
    exported_by_default: Named, exported_by_pipelines: Named, exported: Named
) -> None:
    exported |= exported_by_pipelines
    needing = set()
    assert len({rule["alert"] for rule in rules()}) == len(rules()) > 10
    for rule in rules():
        assert_exported(rule["expr"], exported)
        first = next(iter(named(rule["expr"])))  # of an operator's two sides, the left one gives the labels
        assert set(re.findall(r"\$labels\.(\w+)", str(rule))) <= exported[first] | OF_PROMETHEUS
        if first not in exported_by_default | exported_by_pipelines:
            needing.add(rule["alert"])
    of_limits = {"NsqMessagesRejected", "NsqMessagesExpired", "NsqChannelDeadLetters", "GnsqdIdleChannels"}
    of_tls = {"GnsqdCertificateExpires", "GnsqdCertificateExpired"}
    assert needing == of_limits | of_tls | {"GnsqdLogStoreLags", "GnsqdLogStoreGone"}


def test_documentation_lists_the_alerts_in_their_order() -> None:
    text = DOCUMENT.read_text("utf-8")
    of_channels = [(rule["alert"], rule["for"]) for rule in rules() if rule["alert"].startswith("NsqChannel")]
    documented = re.findall(r"^\| `(\w+)` \| .* \| (\d+) (h|m)(?:in)? \|$", text, re.MULTILINE)
    assert of_channels == [(alert, number + unit) for alert, number, unit in documented]
    others = [rule["alert"] for rule in rules() if not rule["alert"].startswith(("NsqChannel", "GnsqPipeline"))]
    assert others == re.findall(r"^\| `((?:Gnsqd|Nsq)[A-Z]\w+)` \| [^|]* \|$", text, re.MULTILINE)


def test_scrape_config_has_the_job_and_the_rules_that_belong_together() -> None:
    config = yaml.safe_load(SCRAPE_CONFIG.read_text("utf-8"))
    jobs = {job["job_name"] for job in config["scrape_configs"]}
    assert set(re.findall(r'job="([^"]+)"', str([rule["expr"] for rule in rules()]))) == jobs
    assert [(SCRAPE_CONFIG.parent / file).resolve() for file in config["rule_files"]] == [ALERTS]


# The documentation


def rows(families: list[Any], prefix: str) -> list[str]:
    """Returns the first cells of each row in the tables of contrib/docs/metrics.md. Types are those of OpenMetrics."""
    found = []
    for family in families:
        if family.name.startswith(prefix):
            name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
            labels = {label for sample in family.samples for label in sample.labels if label != "quantile"}
            order = ["topic", "channel", "paused", *sorted(labels - {"topic", "channel", "paused"})]
            shown = ", ".join(label for label in order if label in labels)
            found.append(f"| `{name}` | {family.type} | {shown} | {family.documentation} |")
    return found


@pytest.mark.usefixtures("exported")
@pytest.mark.parametrize("prefix", ["gnsqd_", "nsq_"])
def test_documentation_lists_every_metric_as_it_is_exported(registry: Registry, options: Options, prefix: str) -> None:
    expected = rows(_page(registry, options, OPENMETRICS, EXPIRIES), prefix)
    documented = re.findall(rf"^\| `{prefix}\w+` \|(?:[^|\n]*\|){{3}}", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert sorted(documented) == sorted(expected), "\n" + "\n".join(expected)
