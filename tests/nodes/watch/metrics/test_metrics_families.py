"""Statuses as metrics: Prometheus's names and units, whole histograms, bounded labels."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from statuses import a_stage, a_status

from nodes.place import ListenPlace
from nodes.watch.commands.exporter import sees
from nodes.watch.metrics.families import MOST_STAGES, Families, NodeStatus
from nodes.watch.metrics.fleet import of_fleet
from swarm.errors import InvalidArgument
from swarm.fleet.observed import MOST_MODELS, Observed, ObservedTotals
from swarm.fleet.view import FleetView
from swarm.flow.latency import BUCKETS_S
from swarm.link import Link, LinkOptions
from swarm.link.grants import Allowed, Grants
from swarm.security.rights.permissions import permissions_of
from swarm.subjects import Subjects

LATENCY = {"p50": 1.0, "p99": 2.5, "ewma": 1.2}
HISTOGRAM = {"counts": [3, 2] + [0] * 13 + [1], "sum": 12.5}


# What a gateway's status has beside that of a healthy node, and what nobody is to invent.
MORE = {
    "rate": 3.5,
    "gossip": {
        "peers": {"alive": 3},
        "events": {"suspected": 2, "died": 1},
        "sent_bytes": 10,
        "received_bytes": 20,
    },
    "events": {"took-over": 2, "invented": 9},
    "requests": {
        "by_status": {"OK": 9, "UNAVAILABLE": 1, "INVENTED": 5},
        "degraded": {"digits": 2},
        "latency_ms": LATENCY,
        "latency_s": HISTOGRAM,
        "under_way": 1,
        "attempts": 12,
        "retries": 2,
        "hedges": 1,
        "breakers": {"digits@1/2": "open"},
    },
    "slo": [{"model": "digits", "p99_ms": 20.0, "errors": 0.001, "burn": {"1h": 15.0, "9d": 1.0}}],
    "edge": {"captured": 5},
    "placement": {
        "digits@1": {
            "ways": {"edge": 4, "split@2": 3, "split@3": 2, "x": 1},
            "probes": 1,
            "why": "",
        }
    },
    "gateway": {
        "doors": {
            "http": {"by_code": {"200": 4, "299": 5}, "in_flight": 2, "connections": 3},
            "back": {"by_code": {"200": 1}},
        }
    },
    "wanted": [{"model": "digits", "version": "1", "stage": 2, "nodes": 1, "replicas": 3}],
    "generation": [
        {"stage": 1, "model": "words", "version": "1", "slots": 8, "sessions": 2, "kv_bytes": 4096}
        | {"kept_bytes": 0, "counters": {"tokens": 70, "opened": 3, "invented": 1}}
        | {"first_token_s": HISTOGRAM, "between_tokens_s": HISTOGRAM}
    ],
    "guards": [
        {"model": "digits", "version": "2", "rows": 90, "unfamiliar": 7, "failed": 0}
        | {"false_alarms": 0.01}
    ],
    "flaws": [
        {"stream": "L", "title": "the lane", "detail": "gone", "mend": "mend it", "of": "digits@1"}
    ],
    "connection": {"round_trip_us": 1500, "sent": 200, "resent": 10, "connections": 2},
    "expires": {"credentials": 1.9e9, "invented": 1.0},
    "rollout": {"model": "digits", "version": "2", "share": 25.0, "state": "rolled-back"},
    "gpus": [{"gpu": 0, "load": 0.5, "used": 1 << 30, "total": 4 << 30}],
    "cameras": [
        {"name": "gate", "state": "running", "frames": 9, "dropped": 4, "torn": 1, "sent": 5}
        | {"decode_ms": 2.0, "reconnects": 3, "age_s": HISTOGRAM}
    ],
}


def measured(stage: int = 1) -> dict[str, Any]:
    """A stage whose counts the tests add up."""
    return a_stage(
        stage,
        counters={"served": 7, "failed": 1, "blocked": 3},
        queue_s=HISTOGRAM,
        compute_s=HISTOGRAM,
        batch_sizes=[5, 1, 0, 0, 0, 0, 0, 0],
        device="cpu",
        wanted_device="cuda",
    )


def all_told(stages: int = 1) -> dict[str, Any]:
    """A status with all that becomes a metric."""
    return a_status("n1", stages=[measured(stage) for stage in range(1, stages + 1)], **MORE)


class _Fixed(Collector):
    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return list(self._families)


def samples(families: Families) -> dict[str, list[tuple[dict[str, str], float]]]:
    """What Prometheus reads: by name, (labels, value) of each sample."""
    registry = CollectorRegistry()
    registry.register(_Fixed(families))
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def of(*told: NodeStatus) -> dict[str, list[tuple[dict[str, str], float]]]:
    families = Families()
    for one in told:
        families.add(one)
    return samples(families)


def test_a_status_becomes_metrics_in_base_units() -> None:
    found = of(NodeStatus("n1", all_told(), "ready"))
    node = {"node": "n1", "role": "shard-1"}
    assert found["swarm_node_up"] == [(node, 1.0)]
    assert found["swarm_requests_total"] == [
        (node | {"status": "OK"}, 9.0),
        (node | {"status": "UNAVAILABLE"}, 1.0),
    ]
    assert found["swarm_takeovers_total"] == [(node, 2.0)]
    placed = {labels["way"]: value for labels, value in found["swarm_edge_placed_total"]}
    assert placed == {"edge": 4.0, "split": 5.0}
    assert found["swarm_edge_probes_total"] == [(node, 1.0)]
    assert found["swarm_gossip_suspicions_total"] == [(node, 2.0)]
    assert found["swarm_gossip_deaths_total"] == [(node, 1.0)]
    assert found["swarm_process_cpu_seconds_total"] == [(node, 1.5)]
    assert found["swarm_breaker_open"] == [(node | {"where": "digits@1/2"}, 1.0)]
    assert found["swarm_slo_latency_target_seconds"] == [(node | {"model": "digits"}, 0.02)]
    assert found["swarm_slo_burn_rate"] == [(node | {"model": "digits", "window": "1h"}, 15.0)]
    camera = node | {"camera": "gate"}
    assert found["swarm_camera_up"] == [(camera, 1.0)]
    assert found["swarm_camera_age_seconds_sum"] == [(camera, 12.5)]
    assert found["swarm_camera_decode_seconds"] == [(camera, 0.002)]
    assert (camera | {"outcome": "dropped"}, 4.0) in found["swarm_camera_frames_total"]
    second = node | {"model": "digits", "version": "1", "stage": "2"}
    assert found["swarm_wanted_replicas"] == [(second, 3.0)]
    stage = node | {"model": "words", "version": "1", "stage": "1"}
    assert found["swarm_generation_sessions_held"] == [(stage, 2.0)]
    assert found["swarm_generation_kv_bytes"] == [(stage, 4096.0)]
    assert found["swarm_generation_tokens_total"] == [(stage, 70.0)]
    assert found["swarm_generation_first_token_seconds_sum"] == [(stage, 12.5)]
    assert found["swarm_generation_sessions_total"] == [(stage | {"outcome": "opened"}, 3.0)]
    [(labels, depth)] = found["swarm_lane_depth"]
    assert (labels["model"], labels["version"], labels["stage"], depth) == ("digits", "1", "1", 2.0)


def test_links_devices_expiries_flaws_and_rollouts_are_told() -> None:
    found = of(NodeStatus("n1", all_told(), "ready"))
    node = {"node": "n1", "role": "shard-1"}
    stage = node | {"model": "digits", "version": "1", "stage": "1"}
    assert found["swarm_connection_round_trip_seconds"] == [(node, 0.0015)]
    assert found["swarm_connection_loss_ratio"] == [(node, 0.05)]
    assert found["swarm_connections_total"] == [(node, 2.0)]
    assert found["swarm_stage_device"] == [(stage | {"device": "cpu"}, 1.0)]
    assert found["swarm_stage_device_lost"] == [(stage, 1.0)]
    assert found["swarm_expiry_timestamp_seconds"] == [(node | {"what": "credentials"}, 1.9e9)]
    flaw = {"stream": "L", "title": "the lane", "of": "digits@1", "mend": "mend it"}
    assert found["swarm_flaw"] == [(node | flaw, 1.0)]
    canary = node | {"model": "digits", "version": "2"}
    assert found["swarm_rollout_rolled_back"] == [(canary, 1.0)]
    assert found["swarm_rollout_share_ratio"] == [(canary, 0.25)]
    assert found["swarm_guard_rows_total"] == [(canary, 90.0)]
    assert found["swarm_guard_unfamiliar_rows_total"] == [(canary, 7.0)]
    assert found["swarm_guard_false_alarm_ratio"] == [(canary, 0.01)]
    assert found["swarm_gpu_load_ratio"] == [(node | {"gpu": "0"}, 0.5)]
    assert found["swarm_gpu_memory_used_bytes"] == [(node | {"gpu": "0"}, float(1 << 30))]


def test_a_stage_on_the_device_that_it_should_have_has_lost_none() -> None:
    stages = [a_stage(1, device="cuda", wanted_device="cuda"), a_stage(2, device="cpu")]
    found = of(NodeStatus("n1", a_status("n1", stages=stages), "ready"))
    assert [value for _, value in found["swarm_stage_device_lost"]] == [0.0, 0.0]


def test_the_doors_of_a_gateway_are_told_by_code() -> None:
    found = of(NodeStatus("n1", all_told(), "ready"))
    door = {"node": "n1", "role": "shard-1", "door": "http"}
    counted = {labels["code"]: v for labels, v in found["swarm_gateway_requests_total"]}
    # What an alert reads is told from zero on.
    assert counted == {"200": 4.0, "500": 0.0, "502": 0.0, "503": 0.0, "504": 0.0}
    assert found["swarm_gateway_in_flight"] == [(door, 2.0)]
    assert found["swarm_gateway_connections"] == [(door, 3.0)]


def test_histograms_are_cumulative_and_begin_at_a_quarter_of_a_millisecond() -> None:
    found = of(NodeStatus("n1", all_told(), "ready"))
    for name in ("swarm_hop_queue_seconds", "swarm_hop_compute_seconds"):
        ends = [(labels["le"], value) for labels, value in found[f"{name}_bucket"]]
        assert ends[0] == ("0.00025", 3.0)
        assert ends[1] == ("0.0005", 5.0)
        assert ends[-1] == ("+Inf", 6.0)
        assert len(ends) == len(BUCKETS_S) + 1
        assert found[f"{name}_count"][0][1] == 6.0
        assert found[f"{name}_sum"][0][1] == 12.5
    assert [v for _, v in found["swarm_request_latency_seconds_bucket"]][-1] == 6.0
    assert [v for _, v in found["swarm_hop_batch_size_bucket"]][:2] == [5.0, 6.0]


def test_labels_are_bounded_whatever_a_node_says() -> None:
    found = of(NodeStatus("n1", all_told(stages=200), "<script>"))
    assert len(found["swarm_lane_depth"]) == MOST_STAGES
    assert [labels["kind"] for labels, _ in found["swarm_events_total"]] == ["took-over"]
    assert found["swarm_node_state"][0][0]["state"] == "other"


def test_a_node_that_says_little_is_told_of_too() -> None:
    found = of(NodeStatus("n1", {"role": "gateway"}, "silent", 7.0), NodeStatus("n2", {}, "dead"))
    assert [value for _, value in found["swarm_node_up"]] == [0.0, 0.0]
    assert found["swarm_node_silence_seconds"][0][1] == 7.0
    assert "swarm_hop_queue_seconds_bucket" not in found


def test_the_fleet_is_told_by_state_and_who_left_is_told_no_more() -> None:
    view = FleetView()
    for node, state in (("n1", "ready"), ("n2", "left"), ("n3", "loading")):
        data = json.dumps(a_status(node, state=state)).encode()
        view.take_status(Subjects("m").status(node), data, 1.0)
    view.take_status(Subjects("m").status("n3"), b"{", 1.5)
    found = samples(of_fleet(view, True, 2.0))
    states = {labels["state"]: value for labels, value in found["swarm_fleet_nodes"]}
    assert (states["ready"], states["loading"], states["dead"]) == (1.0, 1.0, 0.0)
    assert [labels["node"] for labels, _ in found["swarm_node_up"]] == ["n1", "n3"]
    assert [value for _, value in found["swarm_node_marked"]] == [0.0, 1.0]
    refused = {labels["reason"]: value for labels, value in found["swarm_fleet_refused_total"]}
    assert refused["malformed"] == 1.0
    assert found["swarm_exporter_connected"] == [({}, 1.0)]


SERVED = {("digits", "1"): 3, ("gone", "7"): 1}


def fleet_of(**states: str) -> FleetView:
    """Nodes of three stages, s1 … s3, and a fallback, in these states."""
    view = FleetView()
    for node, stages in (("s1", (1,)), ("s2", (2,)), ("s3", (3,)), ("back", (1, 2, 3))):
        document = a_status(node, stages, state=states.get(node, "ready"))
        view.take_status(Subjects("m").status(node), json.dumps(document).encode(), 1.0)
    return view


def ready_nodes(view: FleetView, now: float, connected: bool = True) -> dict[str, float]:
    """The nodes that are ready, by model and stage."""
    found = samples(of_fleet(view, connected, now, SERVED)).get("swarm_stage_ready_nodes", [])
    return {f"{labels['model']}/{labels['stage']}": value for labels, value in found}


def test_stages_of_versions_that_serve_are_told_with_their_ready_nodes() -> None:
    assert ready_nodes(fleet_of(), 1.5) == {
        "digits/1": 2, "digits/2": 2, "digits/3": 2, "gone/1": 0
    }  # fmt: skip
    kinds = samples(of_fleet(fleet_of(s2="failed"), True, 1.5, SERVED))["swarm_stage_nodes"]
    second = {labels["kind"]: value for labels, value in kinds if labels["stage"] == "2"}
    assert second == {"primary": 0.0, "standby": 0.0, "fallback": 1.0}


@pytest.mark.parametrize("state", ["waiting", "loading", "draining", "left", "failed"])
def test_a_node_that_is_not_ready_covers_no_stage(state: str) -> None:
    assert ready_nodes(fleet_of(s2=state, back=state), 1.5)["digits/2"] == 0


def test_a_stage_whose_nodes_died_fell_silent_or_were_forgotten_stays_told_as_lacking() -> None:
    died = fleet_of()
    for node in ("s2", "back"):
        data = json.dumps({"node": "s1", "kind": "died", "subject": node}).encode()
        died.take_event("swarm.m.events.died", data, 1.2)
    assert ready_nodes(died, 1.5)["digits/2"] == 0
    died.tend(1000.0)
    assert not died.nodes
    assert ready_nodes(died, 1000.0)["digits/2"] == 0
    assert ready_nodes(fleet_of(), 8.0)["digits/2"] == 0  # silent


def test_while_nothing_is_heard_no_stage_is_said_to_lack() -> None:
    assert ready_nodes(fleet_of(), 8.0, connected=False) == {}


def test_servers_are_told_whatever_their_documents_hold() -> None:
    good = {"url": "s", "state": "up", "store": {"state": "full", "free_bytes": 4096}}
    servers = [good, {"url": "t"}, {"url": 3, "store": 5, "state": []}]
    found = samples(of_fleet(FleetView(), True, 1.0, servers=servers))
    assert [value for _, value in found["swarm_server_up"]] == [1.0, 0.0, 0.0]
    assert found["swarm_server_store_free_bytes"] == [({"server": "s"}, 4096.0)]
    full = {labels["server"]: v for labels, v in found["swarm_server_store"] if v}
    assert full == {"s": 1.0}


def test_what_clients_observed_is_added_up_and_told_from_zero_on() -> None:
    clock = [0.0]
    client, totals = Observed(lambda: clock[0]), ObservedTotals()
    totals.expect("digits")
    for status in ("OK", "OK", "UNAVAILABLE"):
        client.note("digits", status)
    client.note("made-up", "NOT_FOUND")
    assert not client.is_due
    clock[0] = 6.0
    assert client.is_due
    for _ in range(2):
        totals.take(client.report("c"), clock[0])
    client.told()
    assert client.is_empty
    found = samples(of_fleet(FleetView(), True, 1.0, observed=totals))
    counts = {
        (labels["model"], labels["status"]): v for labels, v in found["swarm_client_requests_total"]
    }
    assert (counts["digits", "OK"], counts["digits", "UNAVAILABLE"]) == (4.0, 2.0)
    assert counts["digits", "INTERNAL"] == 0.0
    assert not [model for model, _ in counts if model != "digits"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"v": 2, "requests": {"m": {"OK": 1}}}',
        b'{"v": 1, "requests": {"m": {"OK": -1}}}',
        b'{"v": 1, "requests": {"m": {"OK": "1"}}}',
        b'{"v": 1, "requests": {"m": 7}}',
        b'{"v": 1, "requests": {"a.b": {"OK": 1}}}',
        b'{"v": 1, "requests": {"": {"OK": 1}}}',
    ],
)
def test_a_report_that_cannot_be_counts_nothing(data: bytes) -> None:
    totals = ObservedTotals()
    totals.take(data, 0.0)
    assert totals.by_model == {}


def test_names_that_clients_make_up_leave_room_for_models_that_serve() -> None:
    totals = ObservedTotals()
    for number in range(3 * MOST_MODELS):
        report = {"v": 1, "requests": {f"m{number}": {"OK": 1, "invented": 9}}}
        totals.take(json.dumps(report).encode(), 0.0)
    assert len(totals.by_model) == MOST_MODELS
    totals.expect("serves")
    assert totals.by_model["serves"] == {}
    assert totals.by_model["m0"] == {"OK": 1}


@pytest.mark.parametrize("text", ["", "x", "70000", ":9464", "-1", "0.0.0.0:", "１"])
def test_a_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="ADDRESS:PORT"):
        ListenPlace.of(text)


def test_without_an_address_only_this_machine_reaches_the_endpoint() -> None:
    assert ListenPlace.of("9464") == ListenPlace("127.0.0.1", 9464)
    assert ListenPlace.of("[::]:1") == ListenPlace("::", 1)


SUBJECTS = Subjects("default")


@pytest.mark.parametrize(
    ("lacks", "what"),
    [
        ("", ""),
        ("$JS.API.STREAM.INFO.KV_", "models"),
        (".models.*.*", "manifests"),
        ("observed", "clients"),
    ],
)
async def test_credentials_that_are_older_than_a_right_are_told(lacks: str, what: str) -> None:
    now = permissions_of("dashboard", mesh="default", models=[])
    publish, subscribe = (
        tuple(subject for subject in subjects if not lacks or lacks not in subject)
        for subjects in (now.publish, now.subscribe)
    )
    link = Link(LinkOptions(servers=("nats://127.0.0.1:1",)))
    link.grants = Grants("d", Allowed(publish), Allowed(subscribe))
    may = sees(link, SUBJECTS)
    assert [name for name, is_so in may.items() if not is_so] == ([what] if what else [])
    found = samples(of_fleet(FleetView(), True, 1.0, sees=may))["swarm_exporter_sees"]
    assert {labels["what"] for labels, value in found if not value} == ({what} - {""})
