"""Writes the dashboard for Grafana, docs/deploy/grafana/holdfast.json.

    python docs/generate/grafana_dashboard.py [--check]

`--check` writes nothing, and exits with 1 if the file differs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

FILE: Final = Path(__file__).parents[1] / "deploy" / "grafana" / "holdfast.json"
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3


class Panel(NamedTuple):
    """A chart: its title, its unit in Grafana's words, and what it shows, by legend."""

    title: str
    unit: str
    queries: dict[str, str]


def _rate(metric: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({metric}[$__rate_interval]))"


def _quantile(share: float, metric: str, *by: str) -> str:
    labels = ", ".join(("le", *by))
    inner = f"sum by ({labels}) (rate({metric}_bucket[$__rate_interval]))"
    return f"histogram_quantile({share}, {inner})"


ROWS: Final[dict[str, Sequence[Panel]]] = {
    "Writes": (
        Panel("Operations", "ops", {
            "{{instance}}": _rate("holdfast_persist_operations_total", "instance"),
        }),
        Panel("Append p99 by stage", "s", {
            "{{stage}}": _quantile(0.99, "holdfast_persist_append_duration_seconds", "stage"),
        }),
        Panel("Sync of the log", "s", {
            "p50": _quantile(0.5, "holdfast_persist_sync_duration_seconds"),
            "p99": _quantile(0.99, "holdfast_persist_sync_duration_seconds"),
        }),
        Panel("Log", "bytes", {
            "{{instance}} size": "holdfast_persist_log_bytes",
            "{{instance}} not synced": "holdfast_persist_log_pending_bytes",
        }),
        Panel("Busy, by cause", "ops", {
            "{{cause}}": _rate("holdfast_persist_busy_total", "cause"),
        }),
        Panel("Refusals, by code", "ops", {"{{code}}": _rate("holdfast_errors_total", "code")}),
    ),
    "Owners": (
        Panel("Servers by state", "short", {
            "{{state}}": "max by (state) (holdfast_coordinator_servers)",
        }),
        Panel("Open stores", "short", {"{{instance}}": "holdfast_persist_open_stores"}),
        Panel("Takeovers and fences", "ops", {
            "takeovers": _rate("holdfast_persist_takeovers_total"),
            "fences": _rate("holdfast_coordinator_fences_total"),
        }),
        Panel("Pause of a takeover", "s", {
            "p50": _quantile(0.5, "holdfast_persist_takeover_duration_seconds"),
            "p99": _quantile(0.99, "holdfast_persist_takeover_duration_seconds"),
        }),
        Panel("Opening a store", "s", {
            "p50": _quantile(0.5, "holdfast_persist_open_duration_seconds"),
            "p99": _quantile(0.99, "holdfast_persist_open_duration_seconds"),
        }),
        Panel("Consumers' lag", "short", {
            "all": "sum (holdfast_persist_consumers_lag)",
            "the longest": "max (holdfast_persist_consumers_lag_max)",
        }),
    ),
    "Bucket": (
        Panel("Snapshots that wait", "short", {
            "{{instance}}": "holdfast_persist_snapshot_backlog",
        }),
        Panel("Stores that exports lack changes of", "short", {
            "{{instance}}": "holdfast_persist_behind_stores",
        }),
        Panel("Age of what exports lack", "s", {
            "{{instance}}": "holdfast_persist_oldest_unexported_seconds",
            "{{instance}} at most": "holdfast_persist_lag_bound_seconds",
        }),
        Panel("Requests by kind", "reqps", {
            "{{kind}}": _rate("holdfast_bucket_requests_total", "kind"),
        }),
        Panel("Dollars per day", "currencyUSD", {
            "{{kind}}": "86400 * " + _rate("holdfast_bucket_dollars_total", "kind"),
        }),
        Panel("Bytes", "Bps", {
            "sent": _rate("holdfast_bucket_sent_bytes_total"),
            "received": _rate("holdfast_bucket_received_bytes_total"),
        }),
        Panel("Failed requests", "reqps", {
            "failed": _rate("holdfast_bucket_failures_total"),
        }),
    ),
    "Gateways": (
        Panel("HTTP p99 by class", "s", {
            "{{class}}": _quantile(0.99, "holdfast_gateway_request_duration_seconds", "class"),
        }),
        Panel("HTTP followers", "short", {"{{way}}": "sum by (way) (holdfast_gateway_followers)"}),
        Panel("JetStream publishes", "ops", {
            "{{instance}}": _rate("holdfast_jetstream_published_total", "instance"),
        }),
    ),
    "Processes": (
        Panel("Processor", "percentunit", {
            "{{instance}}": _rate("holdfast_process_cpu_seconds_total", "instance"),
        }),
        Panel("Memory", "bytes", {"{{instance}}": "holdfast_process_resident_bytes"}),
        Panel("Up for", "s", {"{{instance}}": "time() - holdfast_start_time_seconds"}),
    ),
}


def dashboard() -> dict[str, Any]:
    """Return the document that Grafana imports."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        place = {"x": 0, "y": y, "w": _WIDTH * _COLUMNS, "h": 1}
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": place})
        y += 1
        for index, panel in enumerate(row):
            at = {
                "x": index % _COLUMNS * _WIDTH,
                "y": y + index // _COLUMNS * _HEIGHT,
                "w": _WIDTH,
                "h": _HEIGHT,
            }
            panels.append(_chart(panel, at))
        y += -(-len(row) // _COLUMNS) * _HEIGHT
    for number, each in enumerate(panels, 1):
        each["id"] = number
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return {
        "title": "holdfast",
        "uid": "holdfast",
        "tags": ["holdfast"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source]},
        "panels": panels,
    }


def _chart(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(65 + at), "expr": query, "legendFormat": legend, "datasource": _SOURCE}
            for at, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def text() -> str:
    """Return the file."""
    return json.dumps(dashboard(), indent=1) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the file, or with `--check` compare it."""
    if "--check" in arguments:
        if not FILE.exists() or FILE.read_text() != text():
            print(f"{FILE} is out of date: run make generate", file=sys.stderr)
            return 1
        return 0
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
