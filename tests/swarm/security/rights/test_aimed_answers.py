"""A member lets the server send its answers to subjects that others believe: nothing changes.

The rights of a user do not bound the reply subject of what it publishes (nats-server checks it for
nobody). So each role asks everything that the server answers, with each subject that somebody
believes as the reply, by a plain client that keeps to no manners.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from real_server import Inbox, Links
from rights_users import NODES, USERS, files, issued
from shared_server import SharedServer
from support.waiting import eventually
from test_rights_matrix import CREATE, OTHER_LANES, consumer, named

from nodes.up.embedded_cluster import EmbeddedCluster, elected
from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import InvalidArgument, PermissionDenied
from swarm.fleet.events import ensure_events
from swarm.gossip import wire as gossip
from swarm.link import Link, LinkMessage, LinkOptions, jetstream
from swarm.models.registry import Registry
from swarm.security.authority.authority import Authority
from swarm.security.authority.server_conf import operator_conf
from swarm.subjects import Subjects, api, speaker
from swarm.transport.lane import LaneOptions, make_lanes

pytest.importorskip("swarm.records", reason="the feature `records` is not there")
from swarm.records.stream import ensure_audit

pytest.importorskip("swarm.rollout", reason="a feature is not there")
from swarm.rollout.statement import RolloutReport
from swarm.rollout.subjects import RolloutSubjects, judge_of

learned = pytest.importorskip("swarm.learning.weights", reason="a feature is not there")

pytestmark = pytest.mark.integration

SUBJECTS = Subjects("default")
CONFIG, WEIGHTS = "swarm-default-config", "swarm-default-weights"
AUDIT, FILES = "SWARM=default=audit", "OBJ_swarm-default-models"
STORED = (f"KV_{CONFIG}", f"KV_{WEIGHTS}", FILES, AUDIT)
# Everybody but the operator, who may change all this anyway.
MEMBERS = [user for user in USERS if user != "operator"]
# As the body of an answer: of a pulled message, which its sender chose.
WORK = b'{"name": "KV_swarm-default-config", "filter": "$KV.>", "seq": 1}'
PULL = json.dumps({"batch": 1, "expires": 10**9, "group": "g"}).encode()


def lanes(stage: int) -> str:
    return SUBJECTS.stream("digits", "7", stage)


def calls() -> dict[str, bytes]:
    """Everything that the server answers, and what is sent with it."""
    asked = {
        "$JS.API.INFO": b"",
        "$JS.API.STREAM.NAMES": b"",
        "$JS.API.STREAM.LIST": b"",
        "$SYS.REQ.USER.INFO": b"",
        **{f"swarm.default.features.digits.7.{stage}.any": WORK for stage in (1, 2, 3)},
        "swarm.default.dead.digits": b"dead",
        "swarm.default.infer.digits": b"?",
    }
    for stream in (*STORED, *map(lanes, (1, 2, 3))):
        asked |= {
            f"$JS.API.STREAM.INFO.{stream}": b"",
            f"$JS.API.STREAM.MSG.GET.{stream}": b'{"seq": 1}',
            f"$JS.API.DIRECT.GET.{stream}": b'{"seq": 1}',
            f"$JS.API.CONSUMER.NAMES.{stream}": b"",
            f"$JS.API.CONSUMER.LIST.{stream}": b"",
            f"{CREATE}.{stream}": b"{}",
        }
    for key in ("serve.digits", "serve.other", "models.digits.7", "abort.digits.plan"):
        asked[f"$JS.API.DIRECT.GET.KV_{CONFIG}.$KV.{CONFIG}.{key}"] = b""
    asked[f"$JS.API.DIRECT.GET.KV_{WEIGHTS}.$KV.{WEIGHTS}.ledger.digits.7"] = b""
    for stage in (1, 2, 3):
        asked[f"$JS.API.CONSUMER.INFO.{lanes(stage)}.{consumer(stage)}"] = b""
        asked[f"$JS.API.CONSUMER.MSG.NEXT.{lanes(stage)}.{consumer(stage)}"] = PULL
    return asked


# What somebody believes, and what would change it.
BELIEVED = (
    f"$KV.{CONFIG}.serve.digits",
    f"$KV.{CONFIG}.models.digits.7",
    f"$KV.{CONFIG}.objective.digits",
    f"$KV.{CONFIG}.abort.digits.plan",
    f"$KV.{WEIGHTS}.ledger.digits.7",
    "$O.swarm-default-models.M.x",
    "$O.swarm-default-models.C.x",
    "swarm.default.audit.somebody",
    *(
        f"$JS.API.STREAM.{verb}.{stream}"
        for verb in ("DELETE", "PURGE", "UPDATE", "MSG.DELETE")
        for stream in STORED
    ),
)


# What a member may have stored, and lets the server read out to somebody: another's word.
CHOSEN = b'{"v": 1, "node": "shard-1-x", "judge": "shard-1-x", "state": "ready"}'
HEARD = ("swarm.default.status.shard-1.x", "swarm.default.guards.digits.shard-1.x")
READ_ABORTS = f"{NODES} requester".split()


def behind_the_way(subject: str) -> str:
    return f"$JS.ACK.store.-.-.-.{subject}"


async def filled(operator: Link) -> None:
    """All that the operator makes, with values of its own in it, and lanes without messages."""
    await Registry(operator, SUBJECTS).prepare()
    await learned.Weights(operator, SUBJECTS).prepare()
    await ensure_audit(operator, SUBJECTS)
    await ensure_events(operator, SUBJECTS)
    for model in ("digits", "other"):
        await make_lanes(operator, SUBJECTS, model, "7", 3, LaneOptions())
        for stage in (1, 2, 3):
            stream = SUBJECTS.stream(model, "7", stage, operator.domain)
            await jetstream.call(operator, api("STREAM.PURGE", stream))
    config = {"name": FILES, "subjects": ["$O.swarm-default-models.>"], "allow_direct": True}
    await jetstream.ensure_stream(operator, config)
    for key in ("serve.digits", "serve.other", "models.digits.7"):
        await jetstream.kv_put(operator, CONFIG, key, b"believed")
    await jetstream.kv_put(operator, CONFIG, "abort.digits.plan", CHOSEN)
    await jetstream.kv_put(operator, WEIGHTS, "ledger.digits.7", b"believed")
    for kind in "CM":
        await operator.request(f"$O.swarm-default-models.{kind}.x", b"believed", from_server=True)


async def state_of(operator: Link) -> dict[str, object]:
    """Of each stream: its settings, its messages' number, and the last one's sequence."""
    found: dict[str, object] = {}
    for stream in STORED:
        info = await jetstream.call(operator, api("STREAM.INFO", stream))
        state = info["state"]
        found[stream] = (info["config"], state["messages"], state["last_seq"], state["bytes"])
    return found


async def asks_everything(member: Link, sender: Link, aims: tuple[str, ...]) -> None:
    for aim in aims:
        for stage in (1, 2, 3):  # for whoever may pull
            for work in (WORK, CHOSEN):
                sender.publish(SUBJECTS.features("digits", "7", stage), work)
        await sender.flush()
        for subject, body in calls().items():
            member.publish(subject, body, aim)
        await member.flush()


@pytest.mark.parametrize("user", MEMBERS)
async def test_no_answer_of_the_server_changes_what_somebody_believes(
    mesh: tuple[SharedServer, Authority, bool], links: Links, user: str
) -> None:
    server, authority, plain = mesh
    who = {role: files(authority, role, plain) for role in ("operator", "fallback", user)}
    await attacked(links, server.url, server.url, who, user)


@pytest.mark.parametrize("user", ["shard-2", "fallback"])
async def test_nor_does_an_answer_that_goes_from_one_server_of_a_cluster_to_another(
    tmp_path: Path, links: Links, user: str
) -> None:
    authority = issued(tmp_path / "auth")
    who = {role: files(authority, role, False) for role in ("operator", "fallback", user)}
    cluster = EmbeddedCluster(3, more=operator_conf(authority, str(tmp_path / "jwt")))
    await cluster.start()
    try:
        near, *others = cluster.servers
        await elected(LinkOptions(servers=(near.url,), **who["operator"]))
        for server in (near, others[0]):
            await attacked(links, near.url, server.url, who, user)
    finally:
        await links.close()
        await asyncio.gather(*(server.stop() for server in cluster.servers))


@pytest.mark.parametrize("user", ["shard-2", "fallback"])
async def test_nor_one_to_a_call_that_names_a_domain(
    tmp_path: Path, links: Links, user: str
) -> None:
    authority = issued(tmp_path / "auth")
    who = {
        role: {**files(authority, role, False), "domain": "hub"}
        for role in ("operator", "fallback", user)
    }
    authority.name_domain("hub")
    more = operator_conf(authority, str(tmp_path / "jwt"))
    async with EmbeddedServer(more=more, domain="hub") as server:
        await attacked(links, server.url, server.url, who, user)


async def attacked(
    links: Links, url: str, operator_url: str, who: dict[str, dict[str, str]], user: str
) -> None:
    """The user asks everything, and all that is believed is as it was, bit by bit."""
    operator = await links.connect(operator_url, **who["operator"])
    await filled(operator)
    before = await state_of(operator)
    member = await links.connect(url, **who[user])
    sender = await links.connect(url, **who["fallback"])
    heard = Inbox()
    for subject in (SUBJECTS.status_all, RolloutSubjects().guards_all("digits")):
        operator.subscribe(subject, heard)
    await operator.flush()
    await asks_everything(member, sender, HEARD)
    await operator.flush()

    def chosen() -> list[LinkMessage]:
        return [message for message in heard if bytes(message.data) == CHOSEN]

    if user in READ_ABORTS:  # from another server it comes when that one has answered
        await eventually(chosen, "what a member chose comes to who listens")
    else:
        assert chosen() == []
    for names in (speaker, judge_of):
        assert [m for m in chosen() if names(m.subject, m.headers)] == [], "and is nobody's word"
    await asks_everything(member, sender, BELIEVED)
    await asks_everything(member, sender, tuple(map(behind_the_way, BELIEVED)))
    await operator.flush()
    assert await state_of(operator) == before
    for key in ("serve.digits", "serve.other", "models.digits.7"):
        assert await jetstream.kv_get(operator, CONFIG, key) == b"believed", key


def refused_by(reader: Callable[[bytes], object]) -> Callable[[LinkMessage], bool]:
    """Whether a reader refuses what the server says."""

    def is_refused(message: LinkMessage) -> bool:
        try:
            reader(bytes(message.data))
        except InvalidArgument:
            return True
        return False

    return is_refused


# What the members hear from each other: where, who listens for this test, and why an answer of the
# server is nothing there. <fallback> is the user of that name.
AMONG_MEMBERS: dict[str, tuple[str, Callable[[LinkMessage], bool]]] = {
    "swarm.default.reports.digits.x": ("fallback", refused_by(RolloutReport.decode)),
    # A question to any node is answered to whom its reply names.
    "swarm.default.fleet": ("fallback", lambda message: not message.reply),
    "swarm.default.gossip.<fallback>.x": (
        "fallback",
        refused_by(lambda data: gossip.decode(data, None, 1 << 20)),
    ),
}
OTHER_LANE = SUBJECTS.features("other", "7", 2)


@pytest.mark.parametrize("user", MEMBERS)
async def test_among_members_an_answer_of_the_server_is_nothing_and_a_copy_is_of_who_may_write(
    mesh: tuple[SharedServer, Authority, bool], links: Links, user: str
) -> None:
    server, authority, plain = mesh
    who = {
        role: await links.connect(server.url, **files(authority, role, plain))
        for role in {"operator", "fallback", user}
    }
    operator = who["operator"]
    await filled(operator)
    empty = await jetstream.call(operator, api("STREAM.INFO", OTHER_LANES))
    heard: dict[str, Inbox] = {}
    unheard = {
        subject: Inbox() for subject in (SUBJECTS.event("died"), SUBJECTS.under("audit", agent="x"))
    }
    for subject, inbox in unheard.items():
        operator.subscribe(subject, inbox)
    for aim, (listener, _) in AMONG_MEMBERS.items():
        subject = named(aim, authority, plain)
        heard[subject] = Inbox()
        queue = "fleet" if subject == SUBJECTS.fleet else ""
        who[listener].subscribe(subject, heard[subject], queue)
    await who["fallback"].flush()
    await operator.flush()
    await asks_everything(who[user], who["fallback"], (*heard, *unheard, OTHER_LANE))
    for link in who.values():
        await link.flush()
    for (_, is_nothing), (subject, inbox) in zip(
        AMONG_MEMBERS.values(), heard.items(), strict=True
    ):
        copies = [m for m in inbox if bytes(m.data) in (WORK, CHOSEN)]
        assert (copies != []) == (user in READ_ABORTS), subject
        answers = [m for m in inbox if m not in copies and not is_nothing(m)]
        assert [bytes(m.data) for m in answers] == [], subject
    assert [inbox for inbox in unheard.values() if inbox] == [], "these come from the store"
    lane = await jetstream.call(operator, api("STREAM.INFO", OTHER_LANES))
    assert lane["state"]["last_seq"] == empty["state"]["last_seq"], "no answer gets into a lane"


async def test_members_write_and_read_in_the_store_what_is_theirs(
    mesh: tuple[SharedServer, Authority, bool], links: Links
) -> None:
    server, authority, plain = mesh
    before_all = violations(server)
    operator = await links.connect(server.url, **files(authority, "operator", plain))
    await filled(operator)
    heard = Inbox()
    learner = await links.connect(server.url, **files(authority, "learner", plain))
    shard = await links.connect(server.url, **files(authority, "shard-2", plain))
    shard.subscribe("swarm.default.config.>", heard)
    await shard.flush()
    await jetstream.kv_put(shard, CONFIG, "abort.digits.plan", b"broken")
    assert await jetstream.kv_get(learner, CONFIG, "abort.digits.plan") == b"broken"
    await eventually(lambda: heard.bodies == [b"broken"])
    await jetstream.kv_put(learner, WEIGHTS, "ledger.digits.7", b"learned")
    assert await jetstream.kv_get(shard, WEIGHTS, "ledger.digits.7") == b"learned"
    await jetstream.kv_put(operator, CONFIG, "serve.digits", b"spoilt")
    _, revision, _ = await jetstream.kv_message(shard, CONFIG, "serve.digits")
    before = await jetstream.kv_before(shard, CONFIG, "serve.digits", revision)
    assert before[0] == b"believed", "whoever reads a key reads its older revisions"
    told = {subject: Inbox() for subject in ("swarm.default.audit.*", SUBJECTS.events_all)}
    for subject, inbox in told.items():
        operator.subscribe(subject, inbox)
    await operator.flush()
    shard.publish(SUBJECTS.event("died"), b"event")
    await shard.request("swarm.default.audit.me", b"record", from_server=True)
    await eventually(lambda: [inbox.bodies for inbox in told.values()] == [[b"record"], [b"event"]])
    last = b'{"last_by_subj": "swarm.default.audit.me"}'
    found = await operator.request(f"$JS.API.DIRECT.GET.{AUDIT}", last, from_server=True)
    assert bytes(found.data) == b"record"
    assert violations(server) == before_all


async def test_a_member_is_told_at_once_what_it_may_not_do_in_the_store_by_the_name_that_it_used(
    mesh: tuple[SharedServer, Authority, bool], links: Links
) -> None:
    server, authority, plain = mesh
    shard = await links.connect(server.url, **files(authority, "shard-2", plain))
    with pytest.raises(PermissionDenied, match=r"publish to \$KV\.[^ ]*serve\.digits: the role op"):
        await jetstream.kv_put(shard, CONFIG, "serve.digits", b"mine")
    with pytest.raises(PermissionDenied, match=r"publish to \$JS\.API\.STREAM\.DELETE"):
        await jetstream.call(shard, api("STREAM.DELETE", f"KV_{CONFIG}"))


def violations(server: SharedServer) -> list[str]:
    return [line for line in server.log.splitlines() if "iolation" in line]
