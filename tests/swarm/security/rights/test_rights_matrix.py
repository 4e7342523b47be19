"""Every role and every subject against a real server, by JWTs and by a plain configuration.

What is expected is written here by hand, not read from the table.
"""

from __future__ import annotations

import logging
import re

import pytest
from real_server import Inbox, Links
from rights_users import NODES, USERS, files
from shared_server import SharedServer
from support.waiting import eventually

from swarm.features import features
from swarm.link import LinkMessage
from swarm.security.authority.authority import Authority

pytestmark = pytest.mark.integration

ANSWERERS = "edge shard-1 fallback standby gateway"
REQUESTERS = f"requester {ANSWERERS}"
ALL = " ".join(USERS)
LANES = "SWARM=default=digits=7=stage2"
OTHER_LANES = "SWARM=default=other=7=stage2"
CREATE = "$JS.API.CONSUMER.CREATE"
GET_KV = "$JS.API.DIRECT.GET.KV_swarm-default-config.$KV.swarm-default-config"


def consumer(stage: int, model: str = "digits", mesh: str = "default", lane: str = "any") -> str:
    return f"{mesh}={model}=stage{stage}={lane}"


def named(subject: str, authority: Authority, plain: bool) -> str:
    """The subject with the names of users: a plain server knows them by their keys."""
    public = {user.name: user.public for user in authority.users}
    return re.sub("<(.*?)>", lambda it: public[it[1]] if plain else it[1], subject)


# Subject: who may publish; <edge> is the user of that name. `gateway` is for all models, the
# others are for `digits`.
PUBLISH = {
    "swarm.default.infer.digits": "client requester",
    "swarm.default.infer.other": "",
    "swarm.other.infer.digits": "",
    "swarm.default.features.digits.7.1.any": REQUESTERS,
    "swarm.default.features.digits.7.2.any": "edge shard-1 fallback standby",
    "swarm.default.features.digits.7.3.any": "edge shard-2 fallback standby",
    "swarm.default.features.digits.7.4.any": "edge fallback standby",
    "swarm.default.features.other.7.1.any": "gateway",
    "swarm.default.features.other.7.3.any": "",
    "swarm.other.features.digits.7.3.any": "",
    "swarm.default.features.digits.7.1.where": f"{ANSWERERS} operator",
    "swarm.default.features.digits.7.2.where": "shard-2 fallback standby",
    "swarm.default.features.digits.7.3.where": "fallback standby",
    "swarm.default.features.digits.7.0.where": "",
    "swarm.default.features.digits.7.3.node-1": "",
    "swarm.default.features.digits.7.1.node-1": "",
    "swarm.default.fresh.digits.7.1": REQUESTERS,
    "swarm.default.fresh.digits.7.3": "shard-2 fallback standby",
    "swarm.default.fresh.other.7.3": "",
    "swarm.default.cancel.digits.7": REQUESTERS,
    "swarm.default.cancel.digits": "client requester",
    "swarm.default.cancel.other": "",
    "swarm.default.generate.digits": "client requester gateway",
    "swarm.default.cancel.other.7": "gateway",
    "swarm.default.gossip.<edge>.x": NODES,
    "swarm.other.gossip.<edge>.x": "",
    "swarm.default.gossip.<edge>": "",
    "swarm.default.status.<edge>": "",
    **{f"swarm.default.status.<{node}>.x": node for node in NODES.split()},
    "swarm.default.status.<edge>-x.-": "",
    **{f"swarm.default.guards.digits.<{node}>.x": node for node in NODES.split()},
    "swarm.default.guards.other.<edge>.x": "",
    "swarm.default.reports.digits.anybody": f"{NODES} requester",
    "swarm.default.drain.<edge>.x": "operator",
    "swarm.default.status-request": "requester dashboard operator",
    "swarm.default.observed.<requester>.x": "requester",
    "swarm.default.observed.<client>.x": "client",
    "swarm.default.observed.<edge>.x": "",
    "swarm.default.server": "operator",
    "swarm.default.events.died": f"{NODES} operator",
    "swarm.default.config.serve.digits": "",
    "swarm.default.results.demo": "edge",
    "swarm.default.dead.digits": "shard-1 shard-2 fallback standby",
    "swarm.default.dead.other": "",
    "swarm.default.deltas.digits.node-1": "learner",
    "swarm.default.resync.digits.node-1": "learner",
    "swarm.default.weights.digits.7": "",
    "$SRV.PING.swarm-default": f"{NODES} dashboard operator",
    "$SRV.STATS": "operator",
    # Lanes.
    f"$JS.API.CONSUMER.INFO.{LANES}.{consumer(1)}": "shard-1 fallback standby operator",
    f"$JS.API.CONSUMER.INFO.{LANES}.{consumer(2)}": "shard-2 fallback standby operator",
    f"$JS.API.CONSUMER.MSG.NEXT.{LANES}.{consumer(1)}": "shard-1 fallback standby operator",
    f"$JS.API.CONSUMER.MSG.NEXT.{LANES}.{consumer(2)}": "shard-2 fallback standby operator",
    f"$JS.API.CONSUMER.MSG.NEXT.{OTHER_LANES}.{consumer(2, 'other')}": "operator",
    f"$JS.API.CONSUMER.MSG.NEXT.{LANES}.{consumer(2, mesh='other')}": "operator",
    f"$JS.API.CONSUMER.MSG.NEXT.{LANES}.{consumer(2, lane='node-1')}": "operator",
    f"$JS.ACK.{LANES}.{consumer(1)}.1.2.3.4.5": "shard-1 fallback standby",
    f"$JS.ACK.{LANES}.{consumer(2)}.1.2.3.4.5": "shard-2 fallback standby",
    f"$JS.ACK.hub.hash.{LANES}.{consumer(2)}.1.2.3.4.5": "shard-2 fallback standby",
    f"$JS.ACK.{OTHER_LANES}.{consumer(2, 'other')}.1.2.3.4.5": "",
    f"{CREATE}.{LANES}.{consumer(2)}.swarm.default.features.digits.7.2.any": "operator",
    f"{CREATE}.{LANES}": "operator",
    f"{CREATE}.KV_swarm-default-config": "operator",
    f"{CREATE}.OBJ_swarm-default-models": "operator",
    f"$JS.API.CONSUMER.DURABLE.CREATE.{LANES}.x": "operator",
    f"$JS.API.CONSUMER.DELETE.{LANES}.{consumer(2)}": "operator",
    f"$JS.API.CONSUMER.PAUSE.{LANES}.{consumer(2)}": "operator",
    f"$JS.API.STREAM.CREATE.{LANES}": "operator",
    f"$JS.API.STREAM.UPDATE.{LANES}": "operator",
    f"$JS.API.STREAM.PURGE.{LANES}": "operator",
    f"$JS.API.STREAM.DELETE.{LANES}": "operator",
    f"$JS.API.STREAM.INFO.{LANES}": "operator",
    f"$JS.API.STREAM.MSG.GET.{LANES}": "operator",
    f"$JS.API.STREAM.MSG.DELETE.{LANES}": "operator",
    f"$JS.API.DIRECT.GET.{LANES}": "operator",
    "$JS.API.STREAM.NAMES": "operator",
    "$JS.API.STREAM.LIST": "operator",
    # Registry.
    f"{GET_KV}.serve.digits": f"{NODES} requester dashboard operator",
    f"{GET_KV}.models.digits.7": f"{NODES} requester dashboard operator",
    f"{GET_KV}.serve.other": "gateway dashboard operator",
    "$JS.API.DIRECT.GET.KV_swarm-default-config": f"{NODES} requester dashboard operator",
    "$JS.API.DIRECT.GET.KV_swarm-default-weights": f"{NODES} operator",
    "$JS.API.STREAM.INFO.KV_swarm-default-config": f"{NODES} requester dashboard operator",
    "$KV.swarm-default-config.serve.digits": "operator",
    "$KV.swarm-default-config.models.digits.7": "operator",
    "$KV.swarm-default-weights.ledger.digits.7": "learner operator",
    "$KV.swarm-default-weights.ledger.other.7": "operator",
    "$JS.API.DIRECT.GET.OBJ_swarm-default-models": f"{NODES} operator",
    "$O.swarm-default-models.C.x": "operator",
    "$O.swarm-default-models.M.x": "operator",
    # Releases.
    "$JS.API.DIRECT.GET.KV_swarm-default-upgrades.$KV.swarm-default-upgrades.wave": (
        "updater operator"
    ),
    "$JS.API.STREAM.INFO.KV_swarm-default-upgrades": "updater operator",
    "$JS.API.DIRECT.GET.OBJ_swarm-default-releases": "updater operator",
    "$JS.API.STREAM.INFO.OBJ_swarm-default-releases": "updater operator",
    "$KV.swarm-default-upgrades.device.<updater>": "updater operator",
    "$KV.swarm-default-upgrades.device.<edge>": "operator",
    "$KV.swarm-default-upgrades.wave": "operator",
    "$KV.swarm-default-upgrades.release.1_1": "operator",
    "$O.swarm-default-releases.C.x": "operator",
    # Answers.
    "_INBOX.edge.random.7": NODES,
    "_INBOX.operator.random.7": NODES,
    "_INBOX.edge.random.server.7": "",
    "_INBOX.edge.random.pull.7": "",
    "_R_.random.7": f"{ANSWERERS} shard-2",
    "$SYS.REQ.USER.INFO": ALL,
    "$SYS.REQ.SERVER.PING": "",
    "$SYS.REQ.CLAIMS.UPDATE": "",
    "$JS.EVENT.ADVISORY.forged": "",
    "anything": "",
}
SHARDS = "shard-1 shard-2 fallback standby"
# Subject: who may subscribe, without a queue group.
SUBSCRIBE = {
    ">": "",
    "_INBOX.>": "",
    "_INBOX.somebody.>": "",
    "$KV.>": "",
    "$JS.ACK.>": "",
    "$JS.API.>": "",
    "$SYS.>": "",
    "$O.>": "",
    "$JS.EVENT.ADVISORY.>": "operator",
    "$SRV.PING": NODES,
    "$SRV.INFO.swarm-default.id": NODES,
    "swarm.>": "",
    "swarm.default.features.>": "",
    "swarm.default.features.digits.7.2.any": "",
    "swarm.default.fresh.other.7.2": "",
    "swarm.default.cancel.digits.7": SHARDS,
    "swarm.default.cancel.other.7": "",
    "swarm.default.gossip.>": "",
    "swarm.default.gossip.*.x": "",
    **{f"swarm.default.gossip.<{node}>.*": node for node in NODES.split()},
    **{f"swarm.default.drain.<{node}>.*": node for node in NODES.split()},
    "swarm.default.status.>": "requester dashboard updater operator",
    "swarm.default.guards.digits.*.*": f"{NODES} requester dashboard operator",
    "swarm.default.status-request": f"{NODES} operator",
    "swarm.default.observed.>": "dashboard operator",
    "swarm.default.server": "requester dashboard operator",
    "swarm.default.events.*": "dashboard operator",
    "swarm.default.config.>": f"{NODES} requester operator",
    "swarm.default.config.serve.*": f"{NODES} requester dashboard operator",
    "swarm.default.results.*": "requester dashboard operator",
    "swarm.default.dead.digits": "",
    "swarm.default.weights.digits.7": NODES,
    "swarm.default.deltas.digits.node-1": "learner",
    "swarm.default.deltas.other.node-1": "",
}
# Limited to queue groups in a plain configuration; a template of JWTs cannot be.
IN_QUEUES = {
    "swarm.default.infer.digits": ANSWERERS,
    "swarm.default.infer.other": "gateway",
    "swarm.default.fresh.digits.7.2": "shard-2 fallback standby",
}
# (subject, queue group): who may subscribe.
QUEUES = {
    ("swarm.default.infer.digits", "q"): ANSWERERS,
    ("swarm.default.infer.other", "q"): "gateway",
    ("swarm.default.fresh.digits.7.1", "stage"): "shard-1 fallback standby",
    ("swarm.default.fresh.digits.7.2", "stage"): "shard-2 fallback standby",
    ("swarm.default.fresh.digits.7.2", "cover"): "shard-2 fallback standby",
    ("swarm.default.fresh.other.7.2", "stage"): "",
}


# What stands in subjects that a feature brings.
OF_FEATURES = {
    "language": [".generate."],
    "learning": [".deltas.", ".resync.", ".weights.", "default-weights"],
    "rollout": [".guards.", ".reports."],
    "upgrade": ["default-upgrades", "default-releases"],
    "watch": ["serve.other", "config.serve.*"],
}
THERE = {each.name for each in features()}
ABSENT = [part for name in OF_FEATURES.keys() - THERE for part in OF_FEATURES[name]]


def of(user: str, who: dict[str, str]) -> set[str]:
    return {subject for subject, users in who.items() if user in users.split()}


def all_named(who: dict[str, str], authority: Authority, plain: bool) -> dict[str, str]:
    return {
        named(subject, authority, plain): users
        for subject, users in who.items()
        if not any(part in subject for part in ABSENT)
    }


async def test_each_role_publishes_what_it_may_and_nothing_else(
    mesh: tuple[SharedServer, Authority, bool], links: Links
) -> None:
    server, authority, plain = mesh
    expected = all_named(PUBLISH, authority, plain)
    for user in USERS:
        link = await links.connect(server.url, **files(authority, user, plain))
        denied: list[str] = []
        link.on_denied.append(lambda subject, error, denied=denied: denied.append(subject))
        for subject in expected:
            link.publish(subject, b"")
        await link.flush()
        assert set(expected) - set(denied) == of(user, expected), user


async def test_each_role_hears_what_it_may_and_nothing_else(
    mesh: tuple[SharedServer, Authority, bool],
    links: Links,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, authority, plain = mesh
    subscribe = all_named(SUBSCRIBE, authority, plain)
    for user in USERS:
        link = await links.connect(server.url, **files(authority, user, plain))
        with caplog.at_level(logging.WARNING, "swarm.link"):
            caplog.clear()
            asked = subscribe | IN_QUEUES
            for subject in asked:
                link.subscribe(subject, Inbox())
            await link.flush()
            said = [record.getMessage() for record in caplog.records]
            heard = {s for s in asked if not any(f"subscribe to {s}:" in t for t in said)}
            assert heard == of(user, subscribe if plain else asked), user
            caplog.clear()
            for subject, queue in QUEUES:
                other = await links.connect(server.url, **files(authority, user, plain))
                caplog.clear()
                other.subscribe(subject, Inbox(), queue)
                await other.flush()
                allowed = user in QUEUES[subject, queue].split()
                assert (not caplog.records) == allowed, (user, subject, queue)


async def test_a_client_reaches_the_infer_service_of_its_model_and_gets_the_answer(
    mesh: tuple[SharedServer, Authority, bool], links: Links
) -> None:
    server, authority, plain = mesh
    node = await links.connect(server.url, **files(authority, "shard-1", plain))
    node.subscribe("swarm.default.infer.digits", lambda m: node.publish(m.reply, b"seven"), "q")
    await node.flush()
    client = await links.connect(server.url, **files(authority, "client", plain))
    assert bytes((await client.request("swarm.default.infer.digits", b"?")).data) == b"seven"


async def test_a_client_cannot_aim_the_answer_at_a_process_of_the_mesh(
    mesh: tuple[SharedServer, Authority, bool], links: Links
) -> None:
    server, authority, plain = mesh
    node = await links.connect(server.url, **files(authority, "shard-1", plain))
    node.subscribe("swarm.default.infer.digits", lambda m: node.publish(m.reply, b"seven"), "q")
    victim = await links.connect(server.url, **files(authority, "edge", plain))
    heard = Inbox()
    target = victim.expect(heard)
    await node.flush()
    await victim.flush()
    client = await links.connect(server.url, **files(authority, "client", plain))
    client.publish("swarm.default.infer.digits", b"?", target)
    # A request behind it goes the same way, and its answer comes.
    assert bytes((await client.request("swarm.default.infer.digits", b"?")).data) == b"seven"
    await victim.flush()
    assert heard == []


async def test_a_client_reads_the_tokens_of_its_model_and_ends_a_request(
    mesh: tuple[SharedServer, Authority, bool], links: Links
) -> None:
    """Tokens are told by the last stage, whichever node took the request."""
    pytest.importorskip("swarm.language")
    server, authority, plain = mesh
    head = await links.connect(server.url, **files(authority, "shard-1", plain))
    tail = await links.connect(server.url, **files(authority, "shard-2", plain))

    def tell(message: LinkMessage) -> None:
        head.publish(message.reply, b"accepted")
        for token in range(5):
            tail.publish(message.reply, b"%d" % token)

    ended = Inbox()
    head.subscribe("swarm.default.generate.digits", tell, "q")
    head.subscribe("swarm.default.cancel.digits", ended)
    await head.flush()
    client = await links.connect(server.url, **files(authority, "client", plain))
    told = Inbox()
    reply = client.expect(told)
    client.publish("swarm.default.generate.digits", b"?", reply)
    await eventually(lambda: len(told) == 6)
    assert sorted(told.bodies) == [b"0", b"1", b"2", b"3", b"4", b"accepted"]
    client.publish("swarm.default.cancel.digits", b"mine")
    await eventually(lambda: ended.bodies == [b"mine"])


async def test_a_client_tells_what_became_of_its_requests_and_of_nobody_else_s(
    mesh: tuple[SharedServer, Authority, bool], links: Links
) -> None:
    server, authority, plain = mesh
    watcher = await links.connect(server.url, **files(authority, "operator", plain))
    heard = Inbox()
    watcher.subscribe("swarm.default.observed.>", heard)
    await watcher.flush()
    client = await links.connect(server.url, **files(authority, "client", plain))
    client.publish(named("swarm.default.observed.<requester>.x", authority, plain), b"forged")
    client.publish(named("swarm.default.observed.<client>.x", authority, plain), b"own")
    await eventually(lambda: heard.bodies == [b"own"])
