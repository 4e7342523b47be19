"""Each call that the server answers, with each subject that manages something as the reply, by each
role: no stream, consumer, key or message changes.

nats-server checks no reply subject, so every answer can be aimed: documents, refusals, empty
statuses, PubAcks, pulled messages. Nothing may be listening where a member aims. The whole product
is published, and the server's own account of everything is compared once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from real_server import Inbox, Links
from rights_users import files, issued
from support.waiting import eventually

from nodes.up.embedded_cluster import EmbeddedCluster, elected
from swarm.fleet.events import ensure_events
from swarm.link import Link, LinkMessage, LinkOptions, jetstream
from swarm.models.registry import Registry
from swarm.security.authority.authority import Authority
from swarm.security.authority.server_conf import operator_conf, plain_conf
from swarm.security.rights.store import WAY
from swarm.subjects import Subjects, api, in_domain
from swarm.transport.lane import LaneOptions, make_lanes

pytest.importorskip("swarm.records", reason="the feature `records` is not there")
from swarm.records.stream import ensure_audit

learned = pytest.importorskip("swarm.learning.weights", reason="a feature is not there")

pytestmark = pytest.mark.integration

SUBJECTS = Subjects("default")
WEIGHTS, UPGRADES = SUBJECTS.bucket("weights"), SUBJECTS.bucket("upgrades")
AUDITED = SUBJECTS.under("audit", agent="somebody")
CONFIG = SUBJECTS.config_bucket
FILES = f"OBJ_{SUBJECTS.models_bucket}"
ROLES = (
    *("client", "requester", "edge", "join", "shard-1", "shard-2", "shard-3", "fallback"),
    *("standby", "auto", "gateway", "learner", "dashboard", "updater"),
)
STAGES = (1, 2, 3)
# A refusal of a stream, which stores nothing; a message that it has already; a status of a pull.
UNEXPECTED = b"NATS/1.0\r\nNats-Expected-Stream: -\r\n\r\n"
AGAIN = b"NATS/1.0\r\nNats-Msg-Id: again\r\n\r\n"
BEHIND = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 999\r\n\r\n"
PULLS = {
    "404": b'{"batch": 1, "no_wait": true, "group": "g"}',
    "408": b'{"batch": 1, "expires": 1000000, "group": "g"}',
    "400 without a group": b'{"batch": 1, "no_wait": true}',
    "400": b"{",
}
STANDS = b'{"batch": 1, "expires": 20000000000, "group": "g"}'
MOST_WAITING = 512  # pulls of a consumer; one more is answered with 409
OWN_STREAMS = (
    *(f"KV_{CONFIG}", f"KV_{WEIGHTS}", FILES, SUBJECTS.stream_of("audit")),
    *(SUBJECTS.dead_stream, SUBJECTS.events_stream, f"KV_{UPGRADES}"),
)


@dataclass(frozen=True)
class Call:
    """Something that a user publishes, to be answered."""

    subject: str
    body: bytes = b""
    headers: bytes = b""

    def to(self, reply: str) -> bytes:
        """As the protocol has it, with this reply subject."""
        head, size = self.headers, len(self.headers) + len(self.body)
        if head:
            line = f"HPUB {self.subject} {reply} {len(head)} {size}\r\n"
        else:
            line = f"PUB {self.subject} {reply} {size}\r\n"
        return line.encode() + head + self.body + b"\r\n"


def lane(domain: str, stage: int, model: str = "digits") -> str:
    return SUBJECTS.stream(model, "7", stage, domain)


def consumer(stage: int, model: str = "digits") -> str:
    return SUBJECTS.consumer(model, stage)


def all_calls(domain: str) -> list[Call]:
    """Everything that some role may ask and the server answers, changing nothing."""
    called = [api("INFO"), api("STREAM.NAMES"), api("STREAM.LIST"), "$SYS.REQ.USER.INFO"]
    lanes = [lane(domain, stage) for stage in STAGES]
    for stream in (*OWN_STREAMS, *lanes):
        called += [api(verb, stream) for verb in ("STREAM.INFO", "CONSUMER.NAMES", "CONSUMER.LIST")]
    calls = [Call(subject) for subject in called]
    for stream in (*OWN_STREAMS, *lanes):
        for verb in ("DIRECT.GET", "STREAM.MSG.GET"):
            bodies = (b'{"seq": 1}', b'{"seq": 99}', b"{", b"")  # there, 404, 400 or 408
            calls += [Call(api(verb, stream), body) for body in bodies]
    for key in ("serve.digits", "models.digits.7", "abort.digits.no", "plan.digits.no"):
        calls.append(Call(api("DIRECT.GET", f"KV_{CONFIG}", f"$KV.{CONFIG}.{key}")))
        calls.append(Call(f"$KV.{CONFIG}.{key}", b"?", BEHIND))
    releases = UPGRADES
    calls.append(Call(api("DIRECT.GET", f"KV_{releases}", f"$KV.{releases}.wave")))
    for stage in STAGES:
        stream, name = lane(domain, stage), consumer(stage)
        calls.append(Call(api("CONSUMER.INFO", stream, name)))
        pulled = api("CONSUMER.MSG.NEXT", stream, name)
        calls += [Call(pulled, body) for body in PULLS.values()]
        into = SUBJECTS.features("digits", "7", stage)
        calls += [Call(into, b"x", UNEXPECTED), Call(into, b"x", AGAIN)]
        calls.append(Call(SUBJECTS.whereabouts("digits", "7", stage), b"", UNEXPECTED))
        acked = f"$JS.ACK.{stream}.{name}.1.1.1.1.0"
        nobody = f"$JS.ACK.{stream}.{name}.1.99.99.1.0"
        calls += [Call(acked, b"+WPI"), Call(nobody, b"-NAK")]
        calls.append(Call(nobody, b'+NXT {"batch": 1, "no_wait": true, "group": "g"}'))
    for subject in (SUBJECTS.dead("digits"), AUDITED):
        calls += [Call(subject, b"x", UNEXPECTED), Call(subject, b"x", AGAIN)]
    if domain:
        named = [Call(in_domain(it.subject, domain), it.body, it.headers) for it in calls]
        calls = [call for call in named if call not in calls]
    return calls


def managed(domain: str) -> list[str]:
    """Every subject on which the server would manage something, or a stream store something."""
    lanes = [lane(domain, stage) for stage in STAGES]
    found = [
        api(f"STREAM.{verb}", stream)
        for stream in (*lanes, *OWN_STREAMS)
        for verb in (
            *("DELETE", "PURGE", "UPDATE", "CREATE", "MSG.DELETE", "SNAPSHOT", "RESTORE"),
            *("LEADER.STEPDOWN", "PEER.REMOVE"),
        )
    ]
    for stage in STAGES:
        stream, name = lane(domain, stage), consumer(stage)
        verbs = ("DELETE", "PAUSE", "LEADER.STEPDOWN", "UNPIN", "RESET", "DURABLE.CREATE", "CREATE")
        found += [api(f"CONSUMER.{verb}", stream, name) for verb in verbs]
        into = SUBJECTS.features("digits", "7", stage)
        found += [api("CONSUMER.CREATE", stream), api("CONSUMER.CREATE", stream, name, into), into]
        found += [f"$JS.ACK.{stream}.{name}.1.1.1.1.0", api("CONSUMER.MSG.NEXT", stream, name)]
    found += [api("CONSUMER.CREATE", f"KV_{CONFIG}", "thief", f"$KV.{CONFIG}.>")]
    found += ["$JS.API.ACCOUNT.PURGE.MESH", "$JS.API.ACCOUNT.STREAM.MOVE.MESH.x"]
    found += ["$JS.API.META.LEADER.STEPDOWN", "$JS.API.SERVER.REMOVE", "$JS.API.SERVER.STREAM.MOVE"]
    found += ["$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.CLAIMS.DELETE", "$SYS.REQ.SERVER.PING"]
    found += ["$SYS.REQ.ACCOUNT.MESH.CLAIMS.UPDATE", "$SYS.REQ.SERVER.RELOAD"]
    keys = ("serve.digits", "models.digits.7", "abort.digits.plan", "plan.digits.v", "objective.x")
    found += [f"$KV.{CONFIG}.{key}" for key in keys]
    found += [f"$KV.{WEIGHTS}.ledger.digits.7"]
    found += [f"$KV.{UPGRADES}.{key}" for key in ("wave", "release.1_1")]
    found += [f"$O.{SUBJECTS.models_bucket}.{kind}.x" for kind in "CM"]
    found += [SUBJECTS.dead("digits"), AUDITED, SUBJECTS.event("died")]
    if domain:
        found += [in_domain(each, domain) for each in found if in_domain(each, domain) != each]
    return found


# The body of a pulled message is its sender's: as what each call takes for an order.
ORDERS: tuple[dict[str, Any], ...] = (
    {},
    {"name": "thief", "subjects": ["thief.>"], "sources": [{"name": f"KV_{CONFIG}"}]},
    {"name": "mirror", "mirror": {"name": f"KV_{CONFIG}"}},
    {"stream_name": f"KV_{CONFIG}", "config": {"deliver_subject": "_INBOX.thief", "name": "t"}},
    {"pause_until": "2099-01-01T00:00:00Z"},
    {"seq": 1, "no_erase": True, "filter": ">"},
)


def orders(domain: str) -> list[bytes]:
    """Documents that would change what is there, were they taken for orders."""
    stolen = [
        {"name": stream, "subjects": ["x.>"], "republish": {"src": ">", "dest": "_INBOX.thief.>"}}
        for stream in (lane(domain, 1), f"KV_{CONFIG}")
    ]
    return [json.dumps(order).encode() for order in (*ORDERS, *stolen)]


@dataclass
class World:
    """A server with all that an operator makes, and who connects as whom. near: where members
    connect."""

    links: Links
    url: str
    near: str
    who: dict[str, dict[str, str]]
    domain: str = ""
    copies: int = 1
    members: dict[str, Link] = field(default_factory=dict)

    async def connect(self, user: str, url: str = "") -> Link:
        return await self.links.connect(url or self.url, **self.who[user])

    async def make(self) -> Link:
        """Everything, with a message in each stream; returns the operator's link."""
        operator = await self.connect("operator")
        await Registry(operator, SUBJECTS).prepare()
        await learned.Weights(operator, SUBJECTS).prepare()
        await ensure_audit(operator, SUBJECTS)
        await ensure_events(operator, SUBJECTS)
        wait = LaneOptions(depth=1 << 14, ack_wait=600.0, copies=self.copies)
        for model in ("digits", "other"):
            await make_lanes(operator, SUBJECTS, model, "7", 3, wait)
        config = {"name": FILES, "subjects": [f"$O.{SUBJECTS.models_bucket}.>"]}
        await jetstream.ensure_stream(operator, config | {"allow_direct": True})
        releases = UPGRADES
        await jetstream.ensure_bucket(operator, releases, "swarm.default.upgrades")
        await jetstream.kv_put(operator, releases, "wave", b"believed")
        for key in ("serve.digits", "models.digits.7", "abort.digits.plan"):
            await jetstream.kv_put(operator, CONFIG, key, b"believed")
        await jetstream.kv_put(operator, WEIGHTS, "ledger.digits.7", b"believed")
        for subject in (
            f"$O.{SUBJECTS.models_bucket}.C.x",
            AUDITED,
        ):
            await operator.request(subject, b"believed", 5.0, AGAIN, from_server=True)
        fallback = await self.connect("fallback")
        await fallback.request(SUBJECTS.dead("digits"), b"dead", 5.0, AGAIN, from_server=True)
        fallback.publish(SUBJECTS.event("joined"), b"{}")
        for stage in STAGES:
            # In the hands of somebody who is at work on it for long.
            into = SUBJECTS.features("digits", "7", stage)
            await self.send(fallback, into, b"work", AGAIN)
            pulled = api("CONSUMER.MSG.NEXT", lane(self.domain, stage), consumer(stage))
            work, inbox = Inbox(), f"{fallback.server_inbox}.work{stage}"
            fallback.subscribe(inbox, work)
            fallback.publish(fallback.in_domain(pulled), STANDS, inbox)
            await eventually(lambda work=work: work.bodies == [b"work"])  # type: ignore[misc]
        return operator

    async def send(self, link: Link, subject: str, data: bytes, headers: bytes = b"") -> None:
        sender = link if link.grants.may_publish(subject) else await self.connect("shard-1")
        stored = await sender.request(subject, data, 5.0, headers, from_server=True)
        assert b'"seq"' in bytes(stored.data), bytes(stored.data)


# Of an answer of the server: what changes by itself, or by who asks.
PASSING = {"ts", "last_active", "num_waiting", "active", "leader_since", "replicas"}
PASSING |= {"priority_groups"}


def lasting(doc: Any) -> Any:
    """The document without what passes."""
    if isinstance(doc, dict):
        return {key: lasting(value) for key, value in doc.items() if key not in PASSING}
    return doc


async def all_that_is_there(operator: Link) -> dict[str, Any]:
    """Each stream and each consumer of the account, as the server tells of it: settings, state,
    leaders."""
    found: dict[str, Any] = {}
    listed = await jetstream.call(operator, api("STREAM.NAMES"))
    for name in listed["streams"]:
        asked = {"subjects_filter": ">"}
        found[name] = lasting(await jetstream.call(operator, api("STREAM.INFO", name), asked))
        consumers = await jetstream.call(operator, api("CONSUMER.LIST", name))
        for info in consumers["consumers"] or ():
            found[f"{name} {info['name']}"] = lasting(info)
    return found


async def burst(link: Link, messages: Iterable[bytes]) -> int:
    """Write them as they are, and wait until the server has read them; how many."""
    waiting, sent = bytearray(), 0
    for message in messages:
        waiting += message
        sent += 1
        if len(waiting) > 1 << 18:
            link.gather.write(bytes(waiting))
            waiting.clear()
            await link.flush(30.0)
    link.gather.write(bytes(waiting))
    await link.flush(30.0)
    return sent


async def attack(world: World, calls: list[Call], replies: list[str]) -> dict[str, int]:
    """Each role publishes each call that it may with each reply; how many were published."""

    async def by(user: str) -> int:
        link = world.members[user]
        mine = [call for call in calls if link.grants.may_publish(call.subject)]
        # The server refuses the way itself as a reply, whatever is called.
        behind = [call.to(f"{WAY}.{reply}") for call in mine[:2] for reply in replies]
        refused = await burst(link, behind)
        return refused + await burst(link, (call.to(reply) for call in mine for reply in replies))

    counts = await asyncio.gather(*map(by, world.members))
    assert [user for user, link in world.members.items() if link.reconnects] == []
    return dict(zip(world.members, counts, strict=True))


async def answered(link: Link, calls: list[Call]) -> set[int]:
    """Which of these calls are answered to one's own inbox."""
    found: set[int] = set()
    replies = []
    for number, call in enumerate(calls):

        def note(message: LinkMessage, number: int = number) -> None:
            found.add(number)

        replies.append(link.expect_from_server(note))
        link.gather.write(call.to(replies[-1]))
    await link.flush(30.0)
    for _ in range(100):  # from another server they come when that one has answered
        if len(found) == len(calls):
            break
        await asyncio.sleep(0.02)
    for reply in replies:
        link.forget(reply)
    return found


async def nothing_changes(world: World) -> None:
    operator = await world.make()
    for role in ROLES:
        world.members[role] = await world.connect(role, world.near)
    calls, replies = all_calls(world.domain), managed(world.domain)
    shard, fallback = world.members["shard-2"], world.members["fallback"]
    mine = [call for call in calls if fallback.grants.may_publish(call.subject)]
    before = await all_that_is_there(operator)
    assert len(before) >= 13 + 6  # streams, and consumers of lanes
    there = await answered(fallback, mine)
    silent = {(mine[at].subject, mine[at].body) for at in range(len(mine)) if at not in there}
    assert silent == set(), "every call of the product is one that the server answers"

    sent = await attack(world, calls, replies)
    assert await all_that_is_there(operator) == before
    assert sent["shard-2"] > 5000, sent
    of_streams = {user: sent[user] for user in ROLES if user != "client"}
    assert min(of_streams.values()) >= len(replies), sent

    # A full consumer answers with 409.
    pulled = Call(api("CONSUMER.MSG.NEXT", lane(world.domain, 2), consumer(2)))
    parked = Call(pulled.subject, b'{"batch": 1, "expires": 3000000000, "group": "g"}')
    nowhere = f"{shard.options.inbox}.nowhere"
    await burst(shard, (parked.to(nowhere) for _ in range(MOST_WAITING)))
    await burst(shard, (parked.to(reply) for reply in replies))
    assert await all_that_is_there(operator) == before

    await pulled_and_settled(world, replies)
    after = await all_that_is_there(operator)
    assert after.keys() == before.keys()
    # Who may send into a lane and pull from it has done so.
    for own in (lane(world.domain, 1), f"{lane(world.domain, 1)} {consumer(1)}"):
        assert after.pop(own)["config"] == before.pop(own)["config"]
    assert after == before


async def pulled_and_settled(world: World, replies: list[str]) -> None:
    """Messages whose words their sender chose are sent to each reply, by pulls that stood already;
    and each is settled with a question for a confirmation, which is aimed too."""
    fallback, first = world.members["fallback"], world.members["shard-1"]
    into, stream = SUBJECTS.features("digits", "7", 1), lane(world.domain, 1)
    pulled = api("CONSUMER.MSG.NEXT", stream, consumer(1))
    stands = Call(pulled, STANDS)
    sent = 0
    for words in orders(world.domain):
        for start in range(0, len(replies), MOST_WAITING):
            aims = replies[start : start + MOST_WAITING]
            await burst(first, map(stands.to, aims))
            sent += await burst(fallback, [Call(into, words).to("")] * len(aims))
    verbs = (b"", b"+ACK", b"+TERM", b"+NXT", b'+NXT {"batch": 1, "no_wait": true, "group": "g"}')
    settled = (
        Call(f"$JS.ACK.{stream}.{consumer(1)}.1.{2 + at}.{2 + at}.1.0", verbs[at % len(verbs)])
        for at in range(sent)
    )
    aims = (replies[at % len(replies)] for at in range(sent))
    await burst(first, (call.to(aim) for call, aim in zip(settled, aims, strict=True)))


@pytest.mark.parametrize("kind", ["by JWT", "plain", "by JWT, with a domain"])
async def test_no_answer_that_a_member_aims_changes_anything(
    tmp_path: Path, links: Links, kind: str
) -> None:
    authority = issued(tmp_path / "auth", [*ROLES, "operator"])
    domain, plain = ("hub" if "domain" in kind else ""), kind == "plain"
    if domain:
        authority.name_domain(domain)
    conf = plain_conf(authority, 0.0) if plain else operator_conf(authority, str(tmp_path / "jwt"))
    server = await links.server(conf, domain=domain)
    named = {"domain": domain} if domain else {}
    who = {role: files(authority, role, plain) | named for role in (*ROLES, "operator")}
    await nothing_changes(World(links, server.url, server.url, who, domain))


@pytest.mark.benchmark  # three servers agree on leaders first
@pytest.mark.parametrize("at", [0, 1])
async def test_nor_one_that_goes_from_server_to_server_of_a_cluster(
    tmp_path: Path, links: Links, at: int
) -> None:
    authority = issued(tmp_path / "auth", [*ROLES, "operator"])
    who = {role: files(authority, role, False) for role in (*ROLES, "operator")}
    cluster = EmbeddedCluster(3, more=operator_conf(authority, str(tmp_path / "jwt")))
    await cluster.start()
    try:
        urls = [server.url for server in cluster.servers]
        await elected(LinkOptions(servers=(urls[0],), **who["operator"]))
        await nothing_changes(World(links, urls[0], urls[at], who, copies=3))
    finally:
        await links.close()
        await asyncio.gather(*(server.stop() for server in cluster.servers))


# What the server does by headers of a message that it stores: delete others, let it go by itself,
# send it later and elsewhere, count, store several or none, replace, take it for another's.
ACTING = (
    *("Nats-Rollup: all", "Nats-Rollup: sub", "Nats-Rollup: ALL"),
    *("Nats-TTL: 1s", "Nats-TTL: never"),
    f"Nats-Schedule: @at 2009-11-10T23:00:00Z\r\nNats-Schedule-Target: $KV.{CONFIG}.serve.digits",
    "Nats-Incr: 1",
    "Nats-Batch-Id: a\r\nNats-Batch-Sequence: 1\r\nNats-Batch-Commit: 1\r\nNats-Rollup: all",
    "KV-Operation: PURGE\r\nNats-Rollup: all",
    "KV-Operation: DEL",
    "Nats-Marker-Reason: Purge",
    "Nats-Expected-Last-Sequence: 0",
    f"Nats-Stream-Source: KV_{CONFIG} 1",
    f"Nats-Subject: $KV.{CONFIG}.serve.digits",
)


def storable(user: str) -> list[str]:
    """A subject of each kind that some stream stores, by this user or by an operator alone."""
    config, weights, releases = (f"$KV.{bucket}" for bucket in (CONFIG, WEIGHTS, UPGRADES))
    keys = ("serve.digits", "models.digits.7", "abort.digits.mine", "plan.digits.mine")
    found = [f"{config}.{key}" for key in keys]
    found += [f"{weights}.{kind}.digits.7" for kind in ("ledger", "tensors")]
    found += [f"{releases}.{key}" for key in ("wave", f"device.{user}")]
    found += [f"$O.{SUBJECTS.models_bucket}.{kind}.x" for kind in "CM"]
    found += [SUBJECTS.features("digits", "7", stage) for stage in STAGES]
    return [
        *found,
        SUBJECTS.dead("digits"),
        AUDITED,
        SUBJECTS.event("joined"),
    ]


async def stored(operator: Link) -> dict[str, int]:
    """How many messages of each subject are in each stream."""
    there = await all_that_is_there(operator)
    return {
        f"{name} {subject}": count
        for name, info in there.items()
        for subject, count in (info.get("state", {}).get("subjects") or {}).items()
    }


@pytest.mark.parametrize("kind", ["by JWT", "plain"])
async def test_no_header_of_what_a_member_may_store_deletes_anything(
    tmp_path: Path, links: Links, kind: str
) -> None:
    authority, plain = issued(tmp_path / "auth", [*ROLES, "operator"]), kind == "plain"
    conf = plain_conf(authority, 0.0) if plain else operator_conf(authority, str(tmp_path / "jwt"))
    server = await links.server(conf)
    who = {role: files(authority, role, plain) for role in (*ROLES, "operator")}
    world = World(links, server.url, server.url, who)
    operator = await world.make()
    before = await stored(operator)
    assert before[f"KV_{CONFIG} $KV.{CONFIG}.serve.digits"] == 1
    writers = set()
    for role in ROLES:
        link = await world.connect(role)
        calls = [
            Call(subject, b"{}", f"NATS/1.0\r\n{header}\r\n\r\n".encode())
            for subject in storable(link.options.inbox.split(".")[1])
            for header in ACTING
            if link.grants.may_publish(subject)
        ]
        acked = [call for call in calls if call.subject != SUBJECTS.event("joined")]
        await burst(link, (call.to("") for call in calls if call not in acked))
        assert len(await answered(link, acked)) == len(acked), role
        after = await stored(operator)
        gone = [subject for subject, count in before.items() if after.get(subject, 0) < count]
        assert gone == [], role
        writers |= {role} if calls else set()
    assert writers >= {"requester", "shard-2", "auto", "learner", "updater"}


async def test_keys_that_take_roll_ups_are_changed_by_an_operator(
    tmp_path: Path, links: Links
) -> None:
    """As an older version, or another program, has made them."""
    authority = issued(tmp_path / "auth", ["operator", "shard-2"])
    server = await links.server(operator_conf(authority, str(tmp_path / "jwt")))
    operator = await links.connect(server.url, **files(authority, "operator", False))
    for bucket in (CONFIG, WEIGHTS):
        config = {"name": f"KV_{bucket}", "subjects": [f"$KV.{bucket}.>"], "deny_delete": True}
        await jetstream.ensure_stream(operator, config | {"allow_rollup_hdrs": True})
    await jetstream.kv_put(operator, CONFIG, "serve.digits", b"believed")
    await Registry(operator, SUBJECTS).prepare()
    await learned.Weights(operator, SUBJECTS).prepare()
    shard = await links.connect(server.url, **files(authority, "shard-2", False))
    rolled = b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n"
    key = f"$KV.{CONFIG}.abort.digits.mine"
    refused = await shard.request(key, b"{}", 5.0, rolled, from_server=True)
    assert b"rollup not permitted" in bytes(refused.data)
    assert (await stored(operator)).keys() == {f"KV_{CONFIG} $KV.{CONFIG}.serve.digits"}
    for bucket in (CONFIG, WEIGHTS):
        info = await jetstream.call(operator, api("STREAM.INFO", f"KV_{bucket}"))
        assert not info["config"]["allow_rollup_hdrs"]


def test_a_whole_folder_of_keys_knows_the_domain_again(tmp_path: Path) -> None:
    authority: Authority = issued(tmp_path / "auth", ["operator"])
    authority.name_domain("hub")
    again = Authority(authority.directory)
    assert again.store is not None
    assert "$JS.hub.API.>" in {mapping.subject for mapping in again.store.mappings}
