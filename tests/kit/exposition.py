"""Reads /metrics pages with prometheus-client's own parsers, and checks what else Prometheus requires."""

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

OPENMETRICS = "application/openmetrics-text; version=1.0.0"

Labels = tuple[tuple[str, str], ...]
Series = dict[tuple[str, Labels], float]


def families(page: bytes) -> list[Metric]:
    """Parses a page in the format that it has. AssertionError for a family that comes twice."""
    text = page.decode()
    parsed = parse_openmetrics(text) if text.endswith("# EOF\n") else parse_text(text)  # type: ignore[no-untyped-call]
    found = list(parsed)
    names = [family.name for family in found]
    assert len(set(names)) == len(names)
    return found


def series(page: bytes) -> Series:
    """Returns all samples by name and sorted labels; AssertionError for one that comes twice."""
    found: Series = {}
    for family in families(page):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def labels(**values: str) -> Labels:
    return tuple(sorted(values.items()))
