"""The page over 200 simulated nodes, and over senders that mean harm: what it costs, what it shows.

The nodes only speak; the server, the dashboard's process and the browser are real."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from browsing import DASHBOARD_ENDS, Look, main_thread_tasks
from fleets import DashboardProcess, SimulatedFleet, dashboard, publish_event, publish_status
from playwright.async_api import Browser, expect
from statuses import a_stage, a_status

from nodes.up.embedded_server import EmbeddedServer
from swarm.link import Link

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

NODES, STAGES, MODELS = 200, 4, 5
WATCHED = 3.0  # seconds
MOST_CORE, MOST_MB = 0.5, 250  # of the dashboard's process
MOST_LONG_TASK = 200.0  # ms of the main thread


@pytest.fixture(scope="module")
def page_of_fleet(
    server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DashboardProcess]:
    with dashboard(server.url, tmp_path_factory.mktemp("dashboard")) as process:
        yield process


def an_auto_status(node: str, slot: list[int] | None) -> dict[str, Any]:
    """Of a node that knows plan 7 of five stages, and fills a slot of it."""
    stages = range(slot[0], slot[1] + 1) if slot else ()
    plan = {"model": "planned", "version": "1", "plan": 7, "slots": [[1, 3], [4, 5]]}
    plan |= {"replicas": [1, 2], "pace_us": [1000, 2000, 3000, 4000, 5000], "frozen": False}
    plan |= {"reason": "a new node makes it shorter"} | ({"slot": slot} if slot else {})
    work = [a_stage(stage, model="planned") for stage in stages]
    return a_status(node, role="auto", model="planned", priority=0, stages=work, plans=[plan])


def fleet_of(count: int) -> Any:
    """documents(second): five models of four stages, ten nodes a stage; every figure moves."""
    dice = random.Random(7)

    def documents(second: int) -> list[dict[str, Any]]:
        found = []
        for number in range(count):
            stage, model = number % STAGES + 1, number // STAGES % MODELS
            p50 = 1.0 + dice.random()
            latency = {"p50": p50, "p99": 3 * p50, "ewma": p50}
            served = {"served": second * 30 + number, "failed": 0, "refused": 0}
            work = a_stage(
                stage, model=f"model-{model}", counters=served, queue_ms=latency, compute_ms=latency
            )
            status = a_status(f"shard-{stage}-host-{number:04d}", (stage,), model=f"model-{model}")
            found.append(status | {"stages": [work], "rss_bytes": 80_000_000 + 1000 * second})
        return found

    return documents


@pytest.mark.timing
async def test_two_hundred_nodes_stay_smooth_and_cheap(
    link: Link,
    page_of_fleet: DashboardProcess,
    browser: Browser,
    look: Look,
    record_property: Any,
) -> None:
    look.tolerate(*DASHBOARD_ENDS)
    speaking = asyncio.create_task(SimulatedFleet(link, fleet_of(NODES)).run())
    try:
        overview = await look.open(page_of_fleet.url)
        table = await look.open(f"{page_of_fleet.root}#/nodes")
        await expect(table.locator("tbody tr")).to_have_count(NODES)
        await expect(overview.locator(".pipeline")).to_have_count(MODELS)
        used, began = page_of_fleet.cost()[0], time.monotonic()
        tasks = await main_thread_tasks(browser, WATCHED)
        cpu, memory = page_of_fleet.cost()
        core = (cpu - used) / (time.monotonic() - began)
        await look.keep(overview, "two-hundred-overview")
        await look.keep(table, "two-hundred-nodes")
    finally:
        speaking.cancel()
        await asyncio.gather(speaking, return_exceptions=True)
    figures = {"core": core, "mb": memory, "longest_tasks_ms": tasks[-3:]}
    record_property("figures", figures)
    print(f"{NODES} nodes, two browsers: {figures}")
    assert core < MOST_CORE
    assert memory < MOST_MB
    assert len(tasks) > 10 * WATCHED, "the pages were not drawn"
    assert tasks[-1] < MOST_LONG_TASK


SCRIPT = "<img src=x onerror=alert(1)><script>alert(2)</script>"


async def test_hostile_messages_are_text_on_a_page_that_stays_up_and_names_their_sender(
    link: Link, page_of_fleet: DashboardProcess, look: Look
) -> None:
    look.tolerate(*DASHBOARD_ENDS)
    page = await look.open(page_of_fleet.url)
    publish_status(link, a_status("good", detail=SCRIPT, host=SCRIPT))
    publish_status(link, a_status("liar") | {"model": SCRIPT, "rss_bytes": -1})
    link.publish("swarm.default.status.fat.-", json.dumps({"node": "x" * (1 << 20)}).encode())
    link.publish(f"swarm.default.status.{SCRIPT.replace(' ', '/')}.-", b"{}")
    publish_event(link, "rejected", "good", detail=SCRIPT)
    await expect(page.locator(".problems")).to_contain_text("fat")
    await expect(page.locator(".problems")).to_contain_text("<script>alert(2)</script>")
    await expect(page.locator(".events .said")).to_contain_text("<script>")
    await page.goto(f"{page_of_fleet.root}#/nodes")
    await expect(page.locator("tbody tr", has_text="liar")).to_contain_text("not believed")
    await page.goto(f"{page_of_fleet.root}#/node/good")
    await expect(page.locator(".facts-list")).to_contain_text("onerror=alert(1)")
    assert await page.locator("main img, main script").count() == 0
    await page.goto(f"{page_of_fleet.root}#/")
    await look.keep(page, "hostile")


async def test_cameras_and_sessions_of_a_node_are_on_its_page(
    link: Link, page_of_fleet: DashboardProcess, look: Look
) -> None:
    look.tolerate(*DASHBOARD_ENDS)
    camera = {"name": "gate", "state": "waiting", "error": "no route", "frames": 90, "sent": 40}
    latency = {"p50": 2.0, "p99": 4.0, "ewma": 2.0}
    stage = {"stage": 1, "model": "words", "version": "1", "sessions": 3, "slots": 8}
    told = {"cameras": [camera], "generation": [stage | {"between_tokens_ms": latency}]}
    publish_status(link, a_status("sees") | told)
    page = await look.open(f"{page_of_fleet.root}#/node/sees")
    facts = page.locator(".facts-list")
    await expect(facts).to_contain_text("40 of 90 frames sent")
    await expect(facts).to_contain_text("no route")
    await expect(facts).to_contain_text("3 of 8")
    await expect(facts).to_contain_text("ms between tokens")


async def test_the_parts_of_a_composition_are_told_with_their_milliseconds(
    link: Link, page_of_fleet: DashboardProcess, look: Look
) -> None:
    look.tolerate(*DASHBOARD_ENDS)
    page = await look.open(page_of_fleet.url, sign="#link[data-state=live]")
    of = {"model": "cascade", "version": "1"}
    latency = {"p50": 2.0, "p99": 4.0, "ewma": 2.0}
    parts = [
        of | {"part": "small", "is": "small@1", "ms": latency, "counters": {"runs": 12}},
        of | {"part": "label", "is": "choose", "counters": {"runs": 12}},
        of | {"part": "hostile", "is": SCRIPT, "counters": {"runs": 0, "left_out": 3}},
    ]
    status = a_status("joins") | {"compositions": parts}
    status["stages"] = [each | of for each in status["stages"]]
    publish_status(link, status)
    told = page.locator('.composition[aria-label="Parts of cascade@1"]')
    await expect(told.locator("h4")).to_have_text(
        "Composition of 3 parts; most of the time: small, 2.00 ms"
    )
    rows = told.locator("tbody tr")
    await expect(rows.nth(0)).to_have_text("smallsmall@12.00 / 4.00120")
    await expect(rows.nth(1)).to_contain_text("choose")
    await expect(rows.nth(2)).to_contain_text("<script>alert(2)</script>")
    assert await page.locator("main img, main script").count() == 0
    await look.keep(page, "composition")


async def test_guards_and_lighter_models_that_answer_are_told_at_the_version(
    link: Link, page_of_fleet: DashboardProcess, look: Look
) -> None:
    look.tolerate(*DASHBOARD_ENDS)
    page = await look.open(page_of_fleet.url, sign="#link[data-state=live]")
    of = {"model": "seen", "version": "1"}
    guard = of | {"rows": 200, "unfamiliar": 60, "recent_rows": 100, "recent_unfamiliar": 50}
    guard |= {"bound": 0.05, "since": f"12:00 {SCRIPT}"}
    lite = of | {"cause": "UNAVAILABLE", "answers": 9, "recent": 4}
    status = a_status("looks") | {"guards": [guard]}
    status["stages"] = [each | of | {"stood_in": [lite]} for each in status["stages"]]
    publish_status(link, status)
    guards = page.locator('section[aria-label="guard of seen@1"]')
    await expect(guards.locator("tbody tr")).to_contain_text("50.0% of 100 rows5.0%12:00 <img")
    degraded = page.locator('section[aria-label="lighter model of seen@1"]')
    await expect(degraded.locator("tbody tr")).to_have_text("4 UNAVAILABLEseen@19")
    await expect(page.locator(".problems")).to_contain_text("guard of seen@1: unfamiliar")
    assert await page.locator("main img, main script").count() == 0
    await look.keep(page, "notes")


async def test_the_plan_in_force_is_drawn_with_a_lane_for_each_device(
    link: Link, page_of_fleet: DashboardProcess, look: Look
) -> None:
    look.tolerate(*DASHBOARD_ENDS)
    page = await look.open(page_of_fleet.url, sign="#link[data-state=live]")
    publish_status(link, an_auto_status("auto-a", [1, 3]))
    publish_status(link, an_auto_status("auto-b", [4, 5]))
    publish_status(link, an_auto_status("auto-spare", None))
    plan = page.locator('.plan[aria-label="Plan of planned@1"]')
    await expect(plan.locator("h4")).to_have_text("Plan 7: stages 1–3, stages 4–5 (1 of 2 nodes)")
    await expect(plan.locator(".why")).to_have_text("a new node makes it shorter")
    lanes = plan.locator(".lane")
    await expect(lanes).to_have_count(3)
    await expect(lanes.nth(1)).to_contain_text("auto-b")
    await expect(lanes.nth(1).locator(".part")).to_have_text("4–5: 9.00 ms")
    await expect(lanes.nth(1).locator(".hop")).to_have_text("hop 1.00 ms")
    await expect(lanes.nth(2).locator(".hop")).to_have_text("fills no slot")
    bars = [await lanes.nth(n).locator(".part").bounding_box() for n in (0, 1)]
    assert bars[0] is not None
    assert bars[1] is not None
    assert abs(bars[0]["x"] + bars[0]["width"] - bars[1]["x"]) < 2, "one begins where another ends"
    assert abs(bars[0]["width"] / bars[1]["width"] - 3 / 2) < 0.05
    await look.keep(page, "plan")


async def test_a_node_that_speaks_5000_times_a_second_is_marked_and_the_others_are_still_shown(
    link: Link, page_of_fleet: DashboardProcess, look: Look
) -> None:
    look.tolerate(*DASHBOARD_ENDS)
    page = await look.open(f"{page_of_fleet.root}#/nodes")

    async def flood() -> None:
        data = json.dumps(a_status("loud")).encode()
        while True:
            for _ in range(250):
                link.publish("swarm.default.status.loud.-", data)
            await asyncio.sleep(0.05)  # the pace of the flood

    flooding = asyncio.create_task(flood())
    try:
        row = page.locator("tbody tr", has_text="loud")
        await expect(row).to_contain_text("not believed: flood")
        publish_status(link, a_status("quiet"))
        quiet = page.locator("tbody tr", has_text="quiet")
        await expect(quiet).to_have_attribute("data-health", "well")
        assert not flooding.done()
    finally:
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
