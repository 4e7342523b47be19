"""How connections end, and what a link does then: its rules, in simulated time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_server import Links
from simulated_sessions import Session, SimulatedServer
from support.waiting import eventually

from swarm.errors import NotAdmitted, NotConnected
from swarm.security.nkey import encode_seed

pytestmark = pytest.mark.simulated

URL = "nats://simulated"


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedServer]:
    made = SimulatedServer()
    monkeypatch.setattr("swarm.link.link.open_session", made)
    return made


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_server_that_ends_each_connection_as_it_begins_is_asked_with_pauses(
    simulated: SimulatedServer, links: Links
) -> None:
    """Such as one that a line of a subscription is too long for. Asked without a pause, it and the
    link's process did nothing else."""
    link = links.start(URL)
    link.on_up.append(lambda: simulated.sessions[-1].end())
    await asyncio.sleep(60.0)
    assert 30 < len(simulated.sessions) < 300
    assert links.running(link)


async def test_a_connection_that_has_lived_is_replaced_at_once(
    simulated: SimulatedServer, links: Links
) -> None:
    link = await links.connect(URL)
    for before in range(1, 6):
        await asyncio.sleep(2.0)
        lost = now()
        simulated.sessions[-1].end()
        await eventually(lambda n=before: len(simulated.sessions) > n and link.connected)  # type: ignore[misc]
        assert now() - lost < 0.05
    assert len(simulated.sessions) == 6


async def test_a_server_that_answers_no_pings_is_left_within_four_seconds(
    simulated: SimulatedServer, links: Links
) -> None:
    link = await links.connect(URL)
    simulated.hangs = True
    hung, why = now(), []
    link.on_down.append(lambda: why.append(link.last_error))
    await eventually(lambda: bool(why))
    assert 1.0 < now() - hung < 4.0
    assert why == ["the server does not answer pings"]


async def test_a_connection_lost_while_it_asks_for_its_rights_never_was_one(
    simulated: SimulatedServer, links: Links
) -> None:
    simulated.info = {"auth_required": True}
    simulated.on_asked = Session.end
    ups: list[float] = []
    link = links.start(URL)
    link.on_up.append(lambda: ups.append(now()))
    began = now()
    with pytest.raises(NotConnected):
        await link.ready(rounds=1)
    assert now() - began < 0.1, "it is known at once"
    assert ups == []
    simulated.on_asked = lambda session: None
    await link.ready()
    assert len(ups) == 1, "a server that does not tell may have none to tell"


async def test_who_waits_for_a_connection_is_told_that_the_link_was_closed(
    simulated: SimulatedServer, links: Links
) -> None:
    simulated.hangs = True
    link = links.start(URL)
    waiting = [asyncio.create_task(link.ready()) for _ in range(2)]
    await asyncio.sleep(0.5)
    await link.close()
    for each in waiting:
        with pytest.raises(NotConnected, match="closed"):
            await each
    with pytest.raises(NotConnected, match="closed"):
        await link.ready()


async def test_credentials_that_are_gone_are_told_and_leave_nothing_unseen(
    simulated: SimulatedServer, links: Links, tmp_path: Path
) -> None:
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, about: unseen.append(about))
    nkey = tmp_path / "user.nk"
    nkey.touch(0o600)
    nkey.write_text(encode_seed(bytes(32)))
    simulated.info = {"auth_required": True, "nonce": "x"}
    link = await links.connect(URL, nkey=str(nkey))
    nkey.unlink()
    simulated.sessions[-1].end()
    await eventually(lambda: not link.connected)
    with pytest.raises(NotAdmitted, match=r"user\.nk: No such file"):
        await link.ready()
    lengths = []
    for _ in range(3):
        with pytest.raises(NotAdmitted) as refused:
            await link.ready()
        lengths.append(len(refused.traceback))
    assert len(set(lengths)) == 1, "an error that is told again and again does not grow"
    await asyncio.sleep(10.0)
    await links.close()
    gc.collect()
    await asyncio.sleep(0)
    assert unseen == []


@pytest.mark.parametrize("limit", [[], {}, "x", None, -1, 0, 1.5, True], ids=repr)
async def test_a_limit_that_is_no_number_is_as_good_as_none(
    simulated: SimulatedServer, links: Links, limit: object
) -> None:
    simulated.info = {"max_payload": limit, "connect_urls": limit, "domain": limit}
    link = await links.connect(URL)
    assert link.max_payload == 1 << 20
    simulated.sessions[-1].say(b'INFO {"max_payload": 1e999}\r\n')
    await link.flush()
    assert (link.max_payload, link.reconnects) == (1 << 20, 0)


async def test_in_the_turn_in_which_a_connection_is_given_up_a_wait_for_one_is_not_over(
    simulated: SimulatedServer, links: Links
) -> None:
    """The loss is told a turn later. Who asks again would let no turn come."""
    link = await links.connect(URL)
    vain = 0

    async def ask() -> None:
        nonlocal vain
        while vain < 1000:
            await link.ready()
            try:
                link.publish("subject")
                return
            except NotConnected:
                vain += 1

    simulated.sessions[-1].say(b"MSG malformed\r\n")
    await asyncio.create_task(ask())
    assert len(simulated.sessions) == 2
    assert vain == 0
