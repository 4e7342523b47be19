"""Where a message goes that a link receives: subscriptions by number, replies by subject. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from swarm.ids import unguessable
from swarm.link.types import LinkMessage
from swarm.subjects import may_answer

log = logging.getLogger("swarm.link")

OnMessage = Callable[[LinkMessage], None]


class Subscriptions:
    """Subscriptions by their numbers, which the server repeats with each message.

    `callbacks` is read for each message; only `add` and `remove` change it. misdirected: messages
    that were dropped: whoever sent them wants the answers on a subject of the mesh or the server.
    """

    __slots__ = ("_last", "_lines", "callbacks", "misdirected")

    def __init__(self) -> None:
        self.callbacks: dict[int, OnMessage] = {}
        self._lines: dict[int, bytes] = {}
        self._last = 0
        self.misdirected = 0

    def add(self, subject: str, queue: str, callback: OnMessage) -> int:
        """Returns the number of the new subscription. Its callback may publish to each reply that
        it is given. In an inbox, where messages of streams come, the server chooses that; on a
        subject of the mesh anybody does."""
        if not may_answer(subject):
            callback = partial(self._unless_misdirected, callback)
        self._last += 1
        self.callbacks[self._last] = callback
        self._lines[self._last] = f"SUB {subject} {queue} {self._last}\r\n".encode()
        return self._last

    def remove(self, sid: int) -> bool:
        """Whether there was one of this number."""
        self._lines.pop(sid, None)
        return self.callbacks.pop(sid, None) is not None

    def _unless_misdirected(self, callback: OnMessage, message: LinkMessage) -> None:
        if may_answer(message.reply):
            callback(message)
            return
        self.misdirected += 1
        if self.misdirected == 1:
            text = "a message to %.80s that wants its answer on %.80s is dropped, as all such are"
            log.warning(text, message.subject, message.reply)

    def line(self, sid: int) -> bytes:
        """The line that tells the server of one subscription."""
        return self._lines[sid]

    def lines(self) -> bytes:
        """The lines that tell a server of all."""
        return b"".join(self._lines.values())


class Replies:
    """Callbacks by the subject on which each expects replies. `len()`: so many are expected."""

    __slots__ = ("_callbacks", "_last", "_prefix", "_server_prefix")

    def __init__(self, inbox: str, server_inbox: str) -> None:
        """The subjects that the replies of processes, and of the server, stand below."""
        self._prefix = f"{inbox}."
        self._server_prefix = f"{server_inbox}."
        self._callbacks: dict[str, OnMessage] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._callbacks)

    def __contains__(self, reply: object) -> bool:
        return reply in self._callbacks

    def expect(self, callback: OnMessage) -> str:
        """A new subject; `callback` gets each message to it until `forget`. A node's status names
        its inbox, and a node that is asked sees one subject below it. No other subject can be
        guessed, so only nodes that were asked can publish there."""
        reply = f"{self._prefix}{unguessable()}"
        self._callbacks[reply] = callback
        return reply

    def expect_from_server(self, callback: OnMessage) -> str:
        """As `expect`, for an answer of the server itself, such as a PubAck: other processes need
        no right to publish there."""
        self._last += 1
        reply = f"{self._server_prefix}{self._last:x}"
        self._callbacks[reply] = callback
        return reply

    def forget(self, reply: str) -> None:
        """Replies to this subject are dropped from now on."""
        self._callbacks.pop(reply, None)

    def deliver(self, message: LinkMessage) -> None:
        """Hand a reply to the callback that expects it, if there is one."""
        callback = self._callbacks.get(message.subject)
        if callback is not None:
            callback(message)
