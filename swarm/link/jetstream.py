"""JetStream's JSON API over the data link: streams, consumers, keys of a KV bucket.

nats-py 2.16 has no consumer priority groups, and a data connection should not need a second client
for three calls. Every call has a timeout and a typed error.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from swarm.clock import parse_rfc3339
from swarm.errors import (
    ApiError,
    DecodeError,
    InvalidArgument,
    NoLeader,
    NoResponders,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from swarm.link import Link, LinkMessage
from swarm.link.server_version import check_consumer, refused_priorities
from swarm.subjects import api, kv_get_subject

log = logging.getLogger("swarm.link")

# Server error numbers (nats-server, server/errors.json).
STREAM_NOT_FOUND = 10059
STREAM_EXISTS_DIFFERENT = 10058
CONSUMER_NOT_FOUND = 10014
CONSUMER_EXISTS = 10148
CONSUMER_FILTER_TAKEN = (10099, 10100)  # a work queue gives a subject to one consumer
NO_STORE = 10049  # a stream's files cannot be made; also where those of another key are there
# For the most bytes of a stream: of the account, in a cluster, in memory, in files. A cluster may
# say as well that it has no server for it.
NO_ROOM = (10002, 10023, 10028, 10047)
NO_PEER_WITH_ROOM, TOO_LITTLE = 10005, "insufficient"
# A message is refused for want of room: of all that, of the stream's own bounds, or of the disk.
FULL = (*NO_ROOM, 10077)
WRONG_REVISIONS = (10071, 10164)  # somebody else stored the key meanwhile
NO_PEERS = (10005, 10074)  # for so many replicas: too few servers in the cluster, or no cluster
# In a cluster: no leader, not the leader, a stream or a consumer whose server is away, a store that
# is being moved. All of them pass.
ELECTING = (10004, 10006, 10008, 10009, 10118, 10119)

CLOCKS_APART = 300.0  # seconds between two clocks that are worth a warning

HISTORY = 64  # revisions of a key that a bucket keeps

CLUSTER_REPLICAS = 3  # copies where a cluster has so many servers: any one of them may be lost

# Seconds for which a server may be behind, and between two reads of it.
BEHIND, ASK_BEHIND = 0.5, 0.01
APPEARS = 1.0  # seconds for which some server of a cluster may not yet know a stream that was made

_SEQUENCE = re.compile(rb"Nats-Sequence: ([0-9]{1,18})")
_STORED = re.compile(rb"Nats-Time-Stamp: ([0-9TZ:.+-]{20,40})")

_PUB_ACK = re.compile(rb'\{"stream":"[^"\\{}]*", ?"seq":([0-9]{1,18})(?:,[^{}]*)?\}')


# The account, or the server, has no JetStream. That is its configuration, so waiting does not help.
OFF = {10039, 10076}


async def call(
    link: Link, subject: str, doc: dict[str, Any] | None = None, timeout: float = 3.0
) -> dict[str, Any]:
    """One API call. Raises `ApiError`, `Unavailable` (JetStream off, or no answer), `NoLeader`."""
    body = b"" if doc is None else json.dumps(doc).encode()
    try:
        message = await link.request(subject, body, timeout, from_server=True)
    except NoResponders:
        raise Unavailable(_nobody(link)) from None
    except TimeoutError:
        raise Unavailable(f"JetStream did not answer {subject} within {timeout} s") from None
    return parse(message.data)


def _nobody(link: Link) -> str:
    """Why no JetStream answers."""
    if not link.options.domain:
        return (
            "this NATS server has no JetStream: start it with -js, enable jetstream {} in its "
            "configuration, or name the domain of a server that it is linked to, with --domain"
        )
    own = f" (this server's own is {link.server_domain!r})" if link.server_domain else ""
    return (
        f"no JetStream of domain {link.options.domain!r} answers{own}: the link to its server is "
        "cut, or --domain names none"
    )


def stored_sequence(data: bytes | memoryview) -> int:
    """The stream sequence in a PubAck. Raises `ApiError` when it is a refusal, `DecodeError`."""
    # The usual form, read in a quarter of the time that a JSON parser takes.
    if (usual := _PUB_ACK.fullmatch(data)) is not None:
        return int(usual[1])
    sequence = parse(data).get("seq")
    if type(sequence) is not int:
        raise DecodeError(f"no PubAck: {bytes(data[:80])!r}")
    return sequence


def parse(data: bytes | memoryview) -> dict[str, Any]:
    """An API answer or PubAck. Raises `ApiError` when it is a refusal, `DecodeError`."""
    try:
        doc = json.loads(bytes(data))
        error = doc.get("error")
        if not error:
            return dict(doc)
        refusal = ApiError(
            int(error.get("code", 500)),
            int(error.get("err_code", 0)),
            str(error.get("description", "unknown error")),
        )
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        # Anybody who knows a reply subject can publish anything there.
        raise DecodeError(f"JetStream answered with {bytes(data[:80])!r}") from None
    if refusal.err_code in ELECTING:
        raise NoLeader(str(refusal))
    raise refusal


def replicas_of(link: Link) -> int:
    """Copies that a stream gets where its configuration names no number: as the link's options
    say, or with 0 there as many as the server's cluster can keep."""
    if link.options.replicas:
        return link.options.replicas
    return CLUSTER_REPLICAS if link.is_clustered else 1


async def ensure_stream(link: Link, config: dict[str, Any]) -> dict[str, Any]:
    """Create the stream, or take the existing one, whatever its limits are.

    A configuration without `num_replicas` gets `replicas_of(link)` of them; fewer, where no number
    was asked for and the cluster has too few servers at present.
    """
    config = {"num_replicas": replicas_of(link)} | config
    try:
        return await _take_or_create(link, config)
    except ApiError as error:
        if error.err_code not in NO_PEERS or (config.get("max_bytes") and is_no_room(error)):
            raise
        if link.options.replicas:
            raise InvalidArgument(
                f"{config['num_replicas']} copies of {config['name']} were asked for, and the "
                f"cluster has too few servers ({error.description}): with `auto` there are as many "
                "as it can keep"
            ) from None
    return await _take_or_create(link, config | {"num_replicas": 1})


async def ensure_bounded_stream(link: Link, config: dict[str, Any]) -> dict[str, Any]:
    """As `ensure_stream`, for a stream that something else bounds too, such as its age: where the
    server has not as many bytes to set aside as `max_bytes`, that alone does."""
    try:
        return await ensure_stream(link, config)
    except ApiError as error:
        if not is_no_room(error):
            raise
    return await ensure_stream(link, config | {"max_bytes": -1})


async def within_room(
    store: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]], config: dict[str, Any], least: int
) -> dict[str, Any]:
    """`store(config)`; where the server has not as many bytes to set aside as `max_bytes`, with
    half of them, and so on. least: bytes, below which the stream is of no use.

    Raises `ResourceExhausted` where there is no room for those, and what `store` raises.
    """
    least = max(1, least)  # 0 would mean no bound
    while True:
        try:
            return await store(config)
        except ApiError as error:
            if not is_no_room(error):
                raise
            if config["max_bytes"] <= least:
                raise no_room(config, error) from None
        config = config | {"max_bytes": max(least, config["max_bytes"] // 2)}


def no_room(config: Mapping[str, Any], error: ApiError) -> ResourceExhausted:
    """A refusal for want of room, in words. config: of the stream."""
    return ResourceExhausted(
        f"the server has no {config['max_bytes']} bytes to set aside for {config['name']}: let "
        f"versions go that nobody needs (`swarm model gc`), or raise its "
        f"`max_{config.get('storage', 'file')}_store` ({error.description})"
    )


def is_no_room(error: ApiError) -> bool:
    """Whether the server, or its account, has not as many bytes to set aside as were asked for."""
    if error.err_code == NO_PEER_WITH_ROOM:
        return TOO_LITTLE in error.description
    return error.err_code in NO_ROOM


async def _take_or_create(link: Link, config: dict[str, Any]) -> dict[str, Any]:
    try:
        return await call(link, api("STREAM.CREATE", config["name"]), config)
    except ApiError as error:
        if error.err_code == NO_STORE:
            raise Unavailable(
                f"the server cannot make the files of {config['name']}: they were encrypted with "
                "another key (its log says `unable to recover keys`: start it with the key of "
                "before, nothing is lost), or its disk is full"
            ) from None
        if error.err_code != STREAM_EXISTS_DIFFERENT:
            raise
    return await call(link, api("STREAM.INFO", config["name"]))


async def raise_replicas(link: Link, stream: str) -> bool:
    """Give an existing stream as many copies as a new one would get; whether it has more now.

    Raises `ApiError`, `Unavailable`."""
    wanted = replicas_of(link)
    try:
        config = (await call(link, api("STREAM.INFO", stream)))["config"]
        if int(config["num_replicas"]) >= wanted:
            return False
        await change_stream(link, stream, {"num_replicas": wanted})
    except ApiError as error:
        few = error.err_code in NO_PEERS and not link.options.replicas
        if few or error.err_code == STREAM_NOT_FOUND:
            return False
        raise
    return True


async def change_stream(link: Link, stream: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Change these settings of a stream in place, None for one that is taken away, and no other
    one: the server sets what an update leaves out to its default, such as one copy, whoever had set
    it. Returns the stream's configuration. Raises `ApiError`, `Unavailable`."""
    config = (await call(link, api("STREAM.INFO", stream)))["config"]
    if (wanted := changed(config, changes)) == config:
        return dict(config)
    return dict((await call(link, api("STREAM.UPDATE", stream), wanted))["config"])


def changed(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with some changes, None for a setting that is taken away."""
    return {name: value for name, value in {**config, **changes}.items() if value is not None}


async def ensure_consumer(
    link: Link, stream: str, config: dict[str, Any], look: float = 3.0
) -> dict[str, Any]:
    """Take the existing consumer with its settings, or create it.

    It asks first: a user that may not create consumers uses what is there. look: seconds in which
    an existing one answers. Raises `ServerTooOld` where the server knows no priorities of pulls.
    """
    info = await _take_or_create_consumer(link, stream, config, look)
    check_consumer(config, stream, info)
    return info


async def _take_or_create_consumer(
    link: Link, stream: str, config: dict[str, Any], look: float
) -> dict[str, Any]:
    name = config["durable_name"]
    try:
        return await call(link, api("CONSUMER.INFO", stream, name), timeout=look)
    except ApiError as error:
        if error.err_code != CONSUMER_NOT_FOUND:
            raise
    doc = {"stream_name": stream, "action": "create", "config": config}
    try:
        return await call(link, create_consumer_subject(stream, config), doc)
    except ApiError as error:
        if old := refused_priorities(error, stream):
            raise old from None
        if error.err_code != CONSUMER_EXISTS:
            raise
    return await call(link, api("CONSUMER.INFO", stream, name))


def create_consumer_subject(stream: str, config: dict[str, Any]) -> str:
    """Who may publish here may make this consumer, and change it."""
    return api("CONSUMER.CREATE", stream, config["durable_name"], config["filter_subject"])


async def consumer_of(link: Link, stream: str, filter_subject: str) -> dict[str, Any] | None:
    """What the server says of the consumer that gets this subject's messages, or None.

    Raises `ApiError`, `Unavailable`.
    """
    at = 0
    while True:
        page = await call(link, api("CONSUMER.LIST", stream), {"offset": at})
        consumers = page.get("consumers") or []
        for info in consumers:
            if info["config"].get("filter_subject") == filter_subject:
                return dict(info)
        at += len(consumers)
        if not consumers or at >= int(page.get("total", 0)):
            return None


async def change_consumer(
    link: Link, stream: str, name: str, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """As `change_stream`, of a consumer."""
    config = (await call(link, api("CONSUMER.INFO", stream, name)))["config"]
    wanted = changed(config, changes)
    subject = create_consumer_subject(stream, wanted)
    doc = {"stream_name": stream, "action": "update", "config": wanted}
    return dict((await call(link, subject, doc))["config"])


async def delete_consumer(link: Link, stream: str, name: str) -> None:
    """Delete a consumer; one that is gone already is as good."""
    try:
        await call(link, api("CONSUMER.DELETE", stream, name))
    except ApiError as error:
        if error.err_code not in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
            raise


async def ensure_bucket(link: Link, bucket: str, republish: str) -> None:
    """A KV bucket whose changes are republished on `republish`.<key> as core messages.

    It takes no roll-ups: by the header `Nats-Rollup: all` of a message whoever may store one key
    would delete all others. One that does, made otherwise, is changed where this user may.

    A watcher reads its keys after each reconnect, and hears of changes on a core subscription: that
    loses nothing and needs no consumer (measured: KV's own watch resumes 18 s after a restart of
    the server, and loses updates). A key's older revisions stay, for `kv_before`.
    """
    found = await ensure_stream(
        link,
        {
            "name": f"KV_{bucket}",
            "subjects": [f"$KV.{bucket}.>"],
            "max_msgs_per_subject": HISTORY,
            "storage": "file",
            "discard": "new",
            "deny_delete": True,
            "allow_rollup_hdrs": False,
            "allow_direct": True,
            "republish": {"src": f"$KV.{bucket}.>", "dest": f"{republish}.>"},
        },
    )
    await forbid_rollups(link, found["config"])


async def forbid_rollups(link: Link, config: Mapping[str, Any]) -> None:
    """Change a stream that takes roll-ups, where this user may. config: as the server tells it.
    Raises `ApiError`, `Unavailable`."""
    name = config["name"]
    if config.get("allow_rollup_hdrs") and link.may_call(api("STREAM.UPDATE", name)):
        await change_stream(link, name, {"allow_rollup_hdrs": False})


async def kv_get(link: Link, bucket: str, key: str, timeout: float = 2.0) -> bytes | None:
    """A key's value, or None. Raises `Unavailable`."""
    return (await kv_entry(link, bucket, key, timeout))[0]


async def kv_entry(
    link: Link, bucket: str, key: str, timeout: float = 2.0
) -> tuple[bytes | None, int]:
    """A key's value, or None, and its revision, for `kv_put`. Raises `Unavailable`."""
    value, revision, _ = await kv_message(link, bucket, key, timeout)
    return value, revision


async def kv_message(
    link: Link, bucket: str, key: str, timeout: float = 2.0
) -> tuple[bytes | None, int, bytes]:
    """As `kv_entry`, and the headers that the value was stored with, among the server's own.

    In a cluster it asks again, for `BEHIND` seconds at most, while the server that answers is
    behind what this process has stored, read or heard of (`heard_of`).
    """
    subject = kv_get_subject(bucket, key)
    until = time.monotonic() + BEHIND
    while True:
        found = await _kv_read(link, bucket, key, timeout)
        if not link.revisions.is_behind(subject, found[1]):
            if link.is_clustered:
                link.revisions.heard(subject, found[1])
            return found
        if time.monotonic() > until:
            link.revisions.forget(subject)
            return found
        await asyncio.sleep(ASK_BEHIND)


def heard_of(link: Link, bucket: str, key: str, message: LinkMessage) -> None:
    """A change of a key was announced: reads are of that revision from now on, or a newer one."""
    found = _SEQUENCE.findall(message.headers or b"")
    if found and link.is_clustered:
        link.revisions.heard(kv_get_subject(bucket, key), int(found[-1]))


async def _kv_read(
    link: Link, bucket: str, key: str, timeout: float
) -> tuple[bytes | None, int, bytes]:
    subject = kv_get_subject(bucket, key)
    try:
        message = await _of_bucket(link, bucket, subject, b"", timeout)
    except NoResponders:
        # The bucket does not exist, or its server is away: a call that is always answered tells.
        if await stream_exists(link, f"KV_{bucket}"):
            raise Unavailable(f"the key store {bucket} does not answer") from None
        return None, 0, b""
    except TimeoutError:
        raise Unavailable(f"the key store did not answer within {timeout} s") from None
    return _stored_in(message)


async def _of_bucket(
    link: Link, bucket: str, subject: str, data: bytes, timeout: float, headers: bytes = b""
) -> LinkMessage:
    """As `Link.request`. A server of a cluster that does not know the bucket yet is asked again."""
    until = time.monotonic() + (APPEARS if link.is_clustered else 0.0)
    while True:
        try:
            return await link.request(subject, data, timeout, headers, from_server=True)
        except NoResponders:
            if time.monotonic() >= until or not await stream_exists(link, f"KV_{bucket}"):
                raise
        await asyncio.sleep(ASK_BEHIND)


async def kv_before(
    link: Link, bucket: str, key: str, revision: int, timeout: float = 2.0
) -> tuple[bytes | None, int, bytes]:
    """As `kv_message`, of the newest revision of a key before this one; revision 0 where none is
    kept. Raises `PermissionDenied`, `Unavailable`."""
    if revision <= 1:
        return None, 0, b""
    ask = {"multi_last": [f"$KV.{bucket}.{key}"], "up_to_seq": revision - 1}
    subject = api("DIRECT.GET", f"KV_{bucket}")
    try:
        message = await link.request(subject, json.dumps(ask).encode(), timeout, from_server=True)
    except NoResponders:  # a server whose configuration is older than this call
        return None, 0, b""
    except TimeoutError:
        raise Unavailable(f"the key store did not answer within {timeout} s") from None
    value, found, headers = _stored_in(message)
    if found >= revision:  # of a server before 2.11, which gives no older ones
        return None, 0, b""
    return value, found, headers


def _stored_in(message: LinkMessage) -> tuple[bytes | None, int, bytes]:
    """Of a direct answer: the value, or None, its revision, 0 where there is none, its headers."""
    headers = message.headers or b""
    # The server adds its headers behind those of the sender, who may have chosen such a name too.
    found = _SEQUENCE.findall(headers)
    revision = int(found[-1]) if found else 0
    if message.status or b"KV-Operation" in headers:
        return None, revision, bytes(headers)
    return bytes(message.data), revision, bytes(headers)


async def age_of(link: Link, bucket: str, headers: bytes) -> float:
    """Seconds for which a key's value has been stored, by the server's clock alone. headers: as
    `kv_message` gives them; 0.0 where they have no time. Raises `Unavailable`, `ApiError`."""
    return await stream_age(link, f"KV_{bucket}", headers)


async def stream_age(link: Link, stream: str, headers: bytes) -> float:
    """As `age_of`, of a message that was read from this stream."""
    stored = stored_at(headers)
    if not stored:
        return 0.0
    return max(0.0, (await server_time(link, stream) or stored) - stored)


def stored_at(headers: bytes) -> float:
    """When a message that was read from a stream was stored, in seconds of its server's clock; 0.0
    where the headers have no time."""
    found = _STORED.findall(headers)  # the server adds its own behind the sender's
    try:
        return parse_rfc3339(found[-1].decode()) / 1e9 if found else 0.0
    except ValueError:
        return 0.0


async def server_time(link: Link, stream: str) -> float:
    """The present second by the clock of a stream's server; 0.0 where it tells none. Raises
    `Unavailable`, `ApiError`."""
    return told_time(await call(link, api("STREAM.INFO", stream)))


async def signing_time(link: Link, bucket: str) -> int:
    """The millisecond from which a value is signed: by the clock of this device or of the bucket's
    server, whichever is behind. Who reads it refuses lower ones for good: a clock that is ahead
    would be believed until that time has come. Raises `Unavailable`."""
    own = time.time()
    try:
        server = await server_time(link, f"KV_{bucket}")
    except (PermissionDenied, ApiError) as error:
        log.info("signed by this device's clock alone: the server's cannot be read: %s", error)
        return int(own * 1e3)
    if server and abs(own - server) > CLOCKS_APART:
        log.warning(
            "this device's clock is %.0f s %s that of the server: set the wrong one of them",
            abs(own - server),
            "ahead of" if own > server else "behind",
        )
    return int(min(own, server or own) * 1e3)


def told_time(info: Mapping[str, Any]) -> float:
    """The second at which a stream's leader answered, by its clock; 0.0 where it tells none."""
    try:
        return parse_rfc3339(str(info["ts"])) / 1e9
    except (KeyError, ValueError):
        return 0.0


async def stream_exists(link: Link, stream: str) -> bool:
    """Whether the server has this stream. Raises `Unavailable`, `ApiError`."""
    try:
        await call(link, api("STREAM.INFO", stream))
    except ApiError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise
        return False
    return True


async def kv_put(
    link: Link,
    bucket: str,
    key: str,
    value: bytes,
    timeout: float = 3.0,
    *,
    after: int | None = None,
    more: Mapping[str, str] | None = None,
) -> int:
    """Store a value; returns its revision. Raises `ApiError`, `Unavailable`.

    after: the revision that the key must have (0: none yet), compared by the server; `ApiError`
    with `WRONG_REVISIONS` where it has another. more: headers to store with the value.
    """
    lines = [f"{name}: {text}" for name, text in (more or {}).items()]
    if after is not None:
        lines.append(f"Nats-Expected-Last-Subject-Sequence: {after}")
    headers = "\r\n".join(("NATS/1.0", *lines, "", "")).encode() if lines else b""
    try:
        message = await _of_bucket(link, bucket, f"$KV.{bucket}.{key}", value, timeout, headers)
    except (NoResponders, TimeoutError):
        raise Unavailable(f"the key store {bucket} did not take {key}") from None
    revision = stored_sequence(message.data)
    if link.is_clustered:
        link.revisions.heard(kv_get_subject(bucket, key), revision)
    return revision


async def kv_replace(
    link: Link,
    bucket: str,
    key: str,
    value: bytes,
    *,
    after: int,
    more: Mapping[str, str] | None = None,
) -> int | None:
    """As `kv_put`; None where the key has another revision than `after`."""
    try:
        return await kv_put(link, bucket, key, value, after=after, more=more)
    except ApiError as error:
        if error.err_code not in WRONG_REVISIONS:
            raise
    return None


async def kv_keys(link: Link, bucket: str, prefix: str) -> list[str]:
    """The keys below `prefix.`, sorted; empty when there is no bucket."""
    try:
        doc = await call(
            link,
            api("STREAM.INFO", f"KV_{bucket}"),
            {"subjects_filter": f"$KV.{bucket}.{prefix}.>"},
        )
    except ApiError as error:
        if error.err_code == STREAM_NOT_FOUND:
            return []
        raise
    start = len(f"$KV.{bucket}.")
    return sorted(subject[start:] for subject in (doc.get("state", {}).get("subjects") or {}))
