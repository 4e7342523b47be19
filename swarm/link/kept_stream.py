"""A stream that a mesh keeps at its server, held against what it has to be: looked at, and mended.

Somebody may delete it, change it, or pause its consumer while the mesh serves. `look` says what is
wrong, in words; `mend` makes it again. Whoever may not ask for the stream sees its consumer alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from swarm.errors import ApiError, NoResponders
from swarm.link import jetstream
from swarm.link.link import Link
from swarm.subjects import api

MISSING = "it is missing on the server"
CONSUMER_MISSING = "its consumer is missing on the server"
# Fields that a mesh's stream has only where its configuration names them. With one of them the
# server would take no messages, take them from elsewhere, or change them.
NEVER = ("sealed", "mirror", "sources", "subject_transform")
PROBES, PROBE_WITHIN = 2, 2.0  # tries; seconds in which a server stores a message
PROBE = bytes(16 << 10)  # more than the space that the last page of a file can have left
STORES_NOTHING = (
    "its server {server} answers, and stores nothing there: its disk is full, or was when a "
    "message came; it has to be started again once there is room"
)
_UNSET: tuple[Any, ...] = (None, False, 0, -1, "", [], {})


class LimitFault(NamedTuple):
    """A limit that somebody has changed. text: in words. right: what the field is to be."""

    text: str
    field: str
    right: Any


Bounds = Callable[[Mapping[str, Any]], list[LimitFault]]
Store = Callable[[Link, dict[str, Any]], Awaitable[dict[str, Any]]]


def no_bounds(config: Mapping[str, Any]) -> list[LimitFault]:
    """Of a stream whose limits are its operator's."""
    return []


def changed_fields(
    found: Mapping[str, Any], wanted: Mapping[str, Any], names: Collection[str]
) -> list[str]:
    """The names of the fields that are not as wanted. An empty field equals a missing one: the
    server leaves defaults out, or fills them in."""
    return [name for name in names if _value(found, name) != _value(wanted, name)]


def _value(config: Mapping[str, Any], name: str) -> Any:
    value = config.get(name)
    return None if value in _UNSET else value


@dataclass(frozen=True)
class KeptStream:
    """title: of what it is, for people, such as "the lane of stage 1 of digits@1". config: as it
    is made. fixed: fields of it that nobody may change; the others are its operator's. bounds: says
    what is wrong with its limits. consumer: of its one consumer, None where it has none; its
    `consumer_bounds` say what is wrong with that. least_bytes: below which it is of no use, where
    it may be smaller than its configuration says; else 0. republished: what the subjects begin with
    on which the server may copy what comes, "" where that is its operator's. renewable: what it
    holds is with others too, so that one that cannot be mended in place is made anew.
    is_last_copy: what it held is gone with it, so that an empty one is of no use. probe: a
    subject of it that nobody reads, for a message that is stored and purged; "" for none.
    mended_by: what an operator types.
    """

    link: Link
    title: str
    config: dict[str, Any]
    mended_by: str
    fixed: Collection[str] = ("subjects",)
    bounds: Bounds = no_bounds
    consumer: dict[str, Any] | None = None
    consumer_fixed: Collection[str] = ()
    consumer_bounds: Bounds = no_bounds
    least_bytes: int = 0
    republished: str = ""
    renewable: bool = False
    is_last_copy: bool = False
    probe: str = ""
    _names: Collection[str] = field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "_names", tuple(dict.fromkeys((*self.fixed, *NEVER))))

    @property
    def stream(self) -> str:
        return str(self.config["name"])

    @property
    def may_mend(self) -> bool:
        """Whether this user may make the stream."""
        return self.link.may_call(api("STREAM.CREATE", self.stream))

    async def look(self) -> list[str]:
        """What is wrong with it; empty where nothing is. Raises `ApiError`, `Unavailable`,
        `NotConnected` where the server does not say."""
        if not self.link.may_call(api("STREAM.INFO", self.stream)):
            return await self.look_at_consumer()
        found = await self._found()
        if found is None:
            return [MISSING]
        wrong = [
            f"its `{name}` is {found.get(name)!r}, not {self.config.get(name)!r}"
            for name in self._changed(found)
        ]
        limits = [fault.text for fault in self.bounds(found)]
        return [*wrong, *limits, *await self.look_at_consumer()]

    def _changed(self, found: Mapping[str, Any]) -> list[str]:
        names = changed_fields(found, self.config, self._names)
        copies = found.get("republish") or {}
        is_tapped = str(copies.get("dest", "")).startswith(f"{self.republished}.")
        if self.republished and copies and not is_tapped:
            names.append("republish")
        return names

    async def look_at_consumer(self) -> list[str]:
        """As `look`, of the consumer alone, which its nodes may ask for."""
        if self.consumer is None:
            return []
        try:
            info = await jetstream.call(
                self.link, api("CONSUMER.INFO", self.stream, self.consumer["durable_name"])
            )
        except ApiError as error:
            if error.err_code == jetstream.STREAM_NOT_FOUND:
                return [MISSING]
            if error.err_code == jetstream.CONSUMER_NOT_FOUND:
                return [CONSUMER_MISSING]
            raise
        found = info["config"]
        paused = ["its consumer is paused"] if info.get("paused") else []
        wrong = [
            f"its consumer's `{name}` is {found.get(name)!r}, not {self.consumer.get(name)!r}"
            for name in changed_fields(found, self.consumer, self.consumer_fixed)
        ]
        return [*paused, *wrong, *(fault.text for fault in self.consumer_bounds(found))]

    async def stores(self) -> str:
        """Why it takes no message although it is there, in words; "" where it takes one, or this
        user may not try. Raises as `look`.

        A server whose disk was full when a message came stores nothing more in that stream until it
        starts again, answers nothing to who sends, and says so in its own log alone.
        """
        tries = self.probe and self.link.grants.may_publish(self.probe)
        if not tries or not self.link.may_call(api("STREAM.PURGE", self.stream)):
            return ""
        for _ in range(PROBES):
            try:
                answer = await self.link.request(self.probe, PROBE, PROBE_WITHIN, from_server=True)
            except TimeoutError:
                continue  # slow, or it stores nothing
            except NoResponders:
                return ""  # `look` says more
            try:
                jetstream.stored_sequence(answer.data)
            except ApiError as error:
                return f"it takes no message: {error.description}"
            purged = {"filter": self.probe}
            await jetstream.call(self.link, api("STREAM.PURGE", self.stream), purged)
            return ""
        info = await jetstream.call(self.link, api("STREAM.INFO", self.stream))
        server = (info.get("cluster") or {}).get("leader") or self.link.home.name
        return STORES_NOTHING.format(server=server)

    async def mend(self) -> None:
        """Make it as it has to be; what is right with it stays. Raises `ApiError`, `Unavailable`,
        `NotConnected`, `PermissionDenied`, `ResourceExhausted` where the server has no room."""
        found = await self._found()
        if found is not None and not await self._change(found):
            found = None
        if found is None and not self.is_last_copy:
            await self._within_room(jetstream.ensure_stream, self.config)
        if self.consumer is not None:
            await self._mend_consumer(self.consumer)

    async def _change(self, found: dict[str, Any]) -> bool:
        """False where it was deleted, to be made anew."""
        right = {name: self.config.get(name) for name in self._changed(found)}
        right |= {fault.field: fault.right for fault in self.bounds(found)}
        if not right:
            return True
        present = {"name": self.stream, "max_bytes": found["max_bytes"]}
        try:
            await self._within_room(_change, present | right, int(found["max_bytes"]))
        except ApiError:
            if not self.renewable:
                raise
            await jetstream.call(self.link, api("STREAM.DELETE", self.stream))
            return False
        return True

    async def _within_room(
        self, store: Store, config: dict[str, Any], present: int = 0
    ) -> dict[str, Any]:
        """present: its bytes at present, of which it loses none."""
        if not self.least_bytes:
            return await store(self.link, config)
        least = max(self.least_bytes, min(present, config["max_bytes"]))
        return await jetstream.within_room(partial(store, self.link), config, least)

    async def _mend_consumer(self, wanted: dict[str, Any]) -> None:
        info = await jetstream.ensure_consumer(self.link, self.stream, wanted)
        name = wanted["durable_name"]
        if info.get("paused"):
            await jetstream.call(self.link, api("CONSUMER.PAUSE", self.stream, name), {})
        found = info["config"]
        names = changed_fields(found, wanted, self.consumer_fixed)
        right = {field: wanted.get(field) for field in names}
        right |= {fault.field: fault.right for fault in self.consumer_bounds(found)}
        if not right:
            return
        try:
            await jetstream.change_consumer(self.link, self.stream, name, right)
        except ApiError:
            await jetstream.delete_consumer(self.link, self.stream, name)
            await jetstream.ensure_consumer(self.link, self.stream, wanted)

    async def _found(self) -> dict[str, Any] | None:
        try:
            info = await jetstream.call(self.link, api("STREAM.INFO", self.stream))
        except ApiError as error:
            if error.err_code != jetstream.STREAM_NOT_FOUND:
                raise
            return None
        return dict(info["config"])


async def _change(link: Link, changes: dict[str, Any]) -> dict[str, Any]:
    return await jetstream.change_stream(link, changes["name"], changes)
