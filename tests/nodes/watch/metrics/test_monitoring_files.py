"""What `deploy/monitoring` holds is right by promtool, and names metrics that there are."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from programs import needed
from test_metrics_families import all_told, of, samples

from nodes.watch.metrics.families import STATES, NodeStatus
from nodes.watch.metrics.fleet import of_fleet
from swarm.fleet.observed import ObservedTotals
from swarm.fleet.view import SILENT_AFTER, FleetView

FOLDER = Path(__file__).parents[4] / "deploy" / "monitoring"
DASHBOARD = FOLDER / "grafana-dashboard.json"
NAME = re.compile(r"\bswarm_[a-z_]+\b")
LABELS = re.compile(r"\{[^}]*\}")


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = needed("promtool", "prometheus")
    return subprocess.run(
        [program, *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=60
    )


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return document


def asked() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


def test_rules_and_configuration_are_valid() -> None:
    for arguments in (
        ("check", "rules", "recording.rules.yml", "alerts.rules.yml"),
        ("check", "config", "prometheus.yml"),
    ):
        done = promtool(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr


def test_alertmanagers_file_is_valid_and_sends_pages_and_tickets_to_different_places() -> None:
    program = needed("amtool", "prometheus-alertmanager")
    file = FOLDER / "alertmanager.yml"
    done = subprocess.run(
        [program, "check-config", str(file)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    routes = {
        severity: subprocess.run(
            [program, "config", "routes", "test", f"--config.file={file}", f"severity={severity}"],
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout.strip()
        for severity in ("page", "ticket")
    }
    assert routes == {"page": "on-call", "ticket": "tickets"}


def test_each_alert_is_a_page_or_a_ticket() -> None:
    rules = (FOLDER / "alerts.rules.yml").read_text()
    severities = re.findall(r"labels: \{severity: (\w+)\}", rules)
    assert len(severities) == len(re.findall(r"- alert: ", rules))
    assert set(severities) == {"page", "ticket"}


def seconds(text: str, name: str) -> float:
    """The value of a setting such as `for: 5s`."""
    found = re.search(rf"\b{name}: (\d+)s", text)
    assert found is not None, name
    return float(found[1])


def test_a_stage_that_lacks_pages_within_thirty_seconds_at_the_worst() -> None:
    """Each step comes at its latest moment: silence, scrape, evaluation, `for`, and the turn of a
    group of alerts of which another one was told a moment ago."""
    prometheus = (FOLDER / "prometheus.yml").read_text()
    pager = (FOLDER / "alertmanager.yml").read_text()
    rules = (FOLDER / "alerts.rules.yml").read_text().split("- alert: ")
    [rule] = [each for each in rules if each.startswith("SwarmStageWithoutNodes\n")]
    assert "severity: page" in rule
    gathers = max(seconds(pager, "group_wait"), seconds(pager, "group_interval"))
    steps = [SILENT_AFTER, gathers, seconds(rule, "for")]
    steps += [seconds(prometheus, f"{step}_interval") for step in ("scrape", "evaluation")]
    # What `for` has waited is seen at the next evaluation; one second is for sockets.
    assert sum(steps) + 1.0 <= 30.0


def test_every_state_that_a_node_can_have_is_named_by_a_rule_or_is_well() -> None:
    named = set(
        "|".join(
            re.findall(
                r'swarm_node_state\{state=~?"([a-z|]+)"', (FOLDER / "alerts.rules.yml").read_text()
            )
        ).split("|")
    )
    # Who left has no series.
    assert {*STATES, "other"} - named == {"ready", "left"}


def test_each_alert_fires_when_it_should_and_not_before() -> None:
    done = promtool("test", "rules", "rules.test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_test_and_says_what_to_do() -> None:
    rules, tests = ((FOLDER / name).read_text() for name in ("alerts.rules.yml", "rules.test.yml"))
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert len(alerts) == rules.count("action:") == rules.count("summary:")
    assert [name for name in alerts if tests.count(f"alertname: {name}") < 2] == []


def test_the_dashboards_questions_are_promql(tmp_path: Path) -> None:
    rules = [{"record": f"q:{number}", "expr": expr} for number, expr in enumerate(asked())]
    file = tmp_path / "questions.yml"
    file.write_text(json.dumps({"groups": [{"name": "questions", "rules": rules}]}))  # is YAML too
    done = promtool("check", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboards_panels_have_places_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def all_metrics() -> set[str]:
    """Every metric that a node or the exporter can tell."""
    observed = ObservedTotals()
    observed.expect("digits")
    server = {"url": "s", "state": "up", "store": {"state": "fine", "free_bytes": 1}}
    sees = {"models": True}
    fleet = of_fleet(FleetView(), True, 0.0, {("digits", "1"): 1}, [server], observed, sees)
    return {*of(NodeStatus("n1", all_told(), "ready")), *samples(fleet)}


def families(names: Iterable[str]) -> set[str]:
    """Without the parts of a histogram."""
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in names}


def test_every_metric_stands_on_the_page_and_in_a_panel_or_a_rule() -> None:
    rules = [(FOLDER / f"{kind}.rules.yml").read_text() for kind in ("recording", "alerts")]
    asked_for = families(NAME.findall("\n".join([*asked(), *rules])))
    on_the_page = families(NAME.findall((FOLDER / "README.md").read_text()))
    told = families(all_metrics())
    assert sorted(told - asked_for) == []
    assert sorted(told - on_the_page) == []
    assert sorted(name for name in on_the_page - told if name != "swarm_metrics") == []


@pytest.mark.parametrize("name", ["recording.rules.yml", "alerts.rules.yml", DASHBOARD.name])
def test_every_metric_that_is_asked_for_is_told(name: str) -> None:
    told = all_metrics()
    groups = ("recording", "availability", "nodes", "requests", "store", "changes")
    told |= {f"swarm_{group}" for group in groups}
    text = "\n".join(asked()) if name == DASHBOARD.name else (FOLDER / name).read_text()
    assert sorted(set(NAME.findall(LABELS.sub("", text))) - told) == []


def test_a_program_that_is_missing_is_skipped_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install --yes prometheus"):
        needed("promtool", "prometheus")
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="apt-get install --yes prometheus"):
        needed("promtool", "prometheus")
