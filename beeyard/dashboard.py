"""Grafana's dashboard of servers and gateways, as code: `make render` writes it. Pure."""

import json
from typing import Any, Final, NamedTuple

UID: Final = "beeyard"
TITLE: Final = "Beeyard"
# What provisioning calls Prometheus: observability/grafana/provisioning.
DATASOURCE: Final = {"type": "prometheus", "uid": "beeyard-prometheus"}
# Grafana chooses the time over which a rate is taken, by the scrape interval and the width of the panel.
OVER: Final = "$__rate_interval"
OF: Final = 'host=~"$host"'
WIDTH, HEIGHT = 8, 7
COLUMNS = 24 // WIDTH


class Line(NamedTuple):
    """A PromQL expression, and what its series are called."""

    expr: str
    legend: str = "{{host}}"


class Panel(NamedTuple):
    """One graph. ``unit`` is Grafana's name of it."""

    title: str
    about: str
    unit: str
    lines: tuple[Line, ...]


def _rate(name: str, by: str = "host", more: str = "") -> str:
    return f"sum by ({by}) (rate({name}{{{OF}{more}}}[{OVER}]))"


def _share(part: str, whole: str) -> str:
    return f"{part} / ({whole} > 0)"


PANELS: Final[tuple[Panel, ...]] = (
    Panel("Tokens a second", "All that a server wrote, pauses included.", "short", (
        Line(_rate("llamacpp:tokens_predicted_total")),
    )),
    Panel("Tokens a second of an answer", "While an answer is written: what its reader sees.", "short", (
        Line(_share(_rate("llamacpp:tokens_predicted_total"), _rate("llamacpp:tokens_predicted_seconds_total"))),
    )),
    Panel("Prompt tokens a second", "While a prompt is read; what was cached is not counted.", "short", (
        Line(_share(_rate("llamacpp:prompt_tokens_total"), _rate("llamacpp:prompt_seconds_total"))),
    )),
    Panel("Time to the first word", "By the gateway, mean of its last 1,024 requests. Servers do not say it.", "s", (
        Line(f'haproxy_backend_response_time_average_seconds{{proxy="servers", {OF}}}', "{{host}}: server"),
        Line(f'haproxy_backend_queue_time_average_seconds{{proxy="servers", {OF}}}', "{{host}}: waiting"),
    )),
    Panel("Accepted drafts", "Of the tokens drafted, where the engine counts them (BeeLlama v0.4).", "percentunit", (
        Line(f"beeyard:acceptance{{{OF}}}"),
    )),
    Panel("Accepted drafts by position", "How often the n-th token of a draft was right.", "percentunit", (
        Line(
            _rate("llamacpp:spec_decode_num_accepted_tokens_per_pos_total", "host, position")
            + f" / on (host) group_left () ({_rate('llamacpp:spec_decode_num_drafts_total')} > 0)",
            "{{host}} {{position}}",
        ),
    )),
    Panel("Requests", "Worked on and waiting, as the servers say.", "short", (
        Line(f"llamacpp:requests_processing{{{OF}}}", "{{host}}: answering"),
        Line(f"llamacpp:requests_deferred{{{OF}}}", "{{host}}: waiting"),
    )),
    Panel("Gateway", "Its queue, and the servers that are up.", "short", (
        Line(f'haproxy_backend_current_queue{{proxy="servers", {OF}}}', "{{host}}: waiting"),
        Line(f'haproxy_backend_active_servers{{proxy="servers", {OF}}}', "{{host}}: servers"),
    )),
    Panel("Refused a second", "Wrong keys, too many of one key, a full queue.", "reqps", (
        Line(
            _rate("haproxy_backend_http_requests_total", "host, proxy", ', proxy=~"wrong_key|too_many|queue_full"'),
            "{{host}}: {{proxy}}",
        ),
    )),
    Panel("Card", "How busy it is.", "percent", (Line(f"DCGM_FI_DEV_GPU_UTIL{{{OF}}}", "{{host}} {{gpu}}"),)),
    Panel("Card's memory", "Taken.", "percentunit", (
        Line(
            f"DCGM_FI_DEV_FB_USED{{{OF}}} / (DCGM_FI_DEV_FB_USED{{{OF}}} + DCGM_FI_DEV_FB_FREE{{{OF}}})",
            "{{host}} {{gpu}}",
        ),
    )),
    Panel("Card's temperature", "", "celsius", (Line(f"DCGM_FI_DEV_GPU_TEMP{{{OF}}}", "{{host}} {{gpu}}"),)),
    Panel("Card's power", "", "watt", (Line(f"DCGM_FI_DEV_POWER_USAGE{{{OF}}}", "{{host}} {{gpu}}"),)),
    Panel("Disk", "Taken, by file system.", "percentunit", (
        Line(
            f'1 - node_filesystem_avail_bytes{{fstype!~"tmpfs|overlay", {OF}}}'
            f' / node_filesystem_size_bytes{{fstype!~"tmpfs|overlay", {OF}}}',
            "{{host}} {{mountpoint}}",
        ),
    )),
    Panel("Alerts", "What fires: observability/rules.yaml says why, and what to do.", "short", (
        Line('count by (alertname, host) (ALERTS{alertstate="firing"})', "{{alertname}} {{host}}"),
    )),
)  # fmt: skip


def dashboard() -> str:
    """The file that Grafana provisions, as JSON."""
    found: dict[str, Any] = {
        "uid": UID,
        "title": TITLE,
        "tags": ["llm"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "host", "label": "Host", "type": "query", "datasource": DATASOURCE, "refresh": 2,
                    "query": {"query": "label_values(up, host)", "refId": "hosts"}, "multi": True,
                    "includeAll": True, "allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]},
                }
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }  # fmt: skip
    return json.dumps(found, indent=1) + "\n"


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": DATASOURCE, "expr": line.expr, "legendFormat": line.legend}
            for place, line in enumerate(panel.lines)
        ],
    }
