"""Tells who asks, and how often each may: `Callers` of a file, and of nobody."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

from nodes.gateway.access.rules import PREFIX, QUOTA, Rules, hash_of, read_rules
from nodes.gateway.access.tokens import MOST_AGENT, Tokens
from nodes.gateway.call import Caller
from swarm.errors import (
    BadKey,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    SwarmError,
    Unauthenticated,
)
from swarm.flow.bucket import TokenBucket
from swarm.subjects import TOKEN

log = logging.getLogger("swarm.gateway")

AGENT = "swarm-agent"  # header of a caller who shows nothing else
LOOK_EVERY = 1.0  # seconds between looks at the files
MOST_AGENTS = 4096  # whose quota is counted; issuers may name any number
BURST = 1.0  # seconds of a quota that may come at once, as at a stage

OnRefused = Callable[[str, SwarmError, str], None]  # (agent, error, peer)


class AnyCallers:
    """Everybody may ask, under the name that they give: for loopback, and where it is meant."""

    def of(
        self, headers: dict[str, str], peer: str, certificate: str = "", *, takes: bool = True
    ) -> Caller:
        """See `Callers`. Raises `InvalidArgument` for a name that is none."""
        agent = headers.get(AGENT, "")
        if agent and (len(agent) > MOST_AGENT or not TOKEN.fullmatch(agent)):
            raise InvalidArgument(
                f"the header {AGENT} is at most {MOST_AGENT} of letters, digits, - and _"
            )
        return Caller(agent)


class ListedCallers:
    """Who is in the file `path` may ask; it is read again when it changes. A file that cannot be
    used any more changes nothing, and is named in the log.

    on_refused: is told of each refusal. clock: seconds, of quotas. Raises `BadKey`.
    """

    def __init__(
        self,
        path: str,
        on_refused: OnRefused = lambda agent, error, peer: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._on_refused = on_refused
        self._clock = clock
        self._rules = read_rules(path)
        self._tokens = Tokens(self._rules.issuers)
        self._stamps = _stamps(self._rules)
        self._looked = clock()
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def of(
        self, headers: dict[str, str], peer: str, certificate: str = "", *, takes: bool = True
    ) -> Caller:
        """See `Callers`."""
        self._look()
        agent = ""
        try:
            caller = self._known(headers, certificate)
            agent = caller.agent
            if takes:
                self._take(agent, caller.quotas.get(QUOTA, 0.0))
        except (Unauthenticated, PermissionDenied, ResourceExhausted) as error:
            self._on_refused(agent, error, peer)
            raise
        return caller

    def _known(self, headers: Mapping[str, str], certificate: str) -> Caller:
        rules = self._rules
        shown = headers.get("x-api-key", "").strip()
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            shown = shown or given.strip()
        if shown.startswith(PREFIX):
            agent = rules.keys.get(hash_of(shown))
            if agent is None:
                raise Unauthenticated("the key is of nobody here")
            return Caller(agent, "key", rules.quotas[agent], rules.standings[agent])
        if shown:
            bearer = self._tokens.of(shown, time.time())
            if bearer.agent in rules.own:
                raise PermissionDenied(
                    f"the token names agent {bearer.agent!r}, whose key or certificate this gateway"
                    " knows: that one alone may ask by this name"
                )
            return Caller(bearer.agent, "token", bearer.quotas, bearer.standing)
        if certificate:
            agent = rules.certificates.get(certificate)
            if agent is None:
                raise PermissionDenied("the name in the certificate is of nobody here")
            return Caller(agent, "certificate", rules.quotas[agent], rules.standings[agent])
        raise Unauthenticated("show a key or a token: Authorization: Bearer …")

    def _take(self, agent: str, quota: float) -> None:
        """Raises `ResourceExhausted` for an agent over its quota."""
        if not quota:
            return
        now = self._clock()
        bucket = self._buckets.get(agent)
        if bucket is None or bucket.rate != quota:
            bucket = self._buckets[agent] = TokenBucket(quota, max(1.0, quota * BURST))
        self._buckets.move_to_end(agent)
        if len(self._buckets) > MOST_AGENTS:
            self._buckets.popitem(last=False)
        if not bucket.take(now):
            text = f"agent {agent!r} may ask {quota:g} times a second"
            raise ResourceExhausted(text, bucket.wait(now))

    def _look(self) -> None:
        """Read the files again, if they have changed."""
        now = self._clock()
        if now - self._looked < LOOK_EVERY:
            return
        self._looked = now
        stamps = _stamps(self._rules)
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self._rules = read_rules(self._path)
        except BadKey as error:
            log.warning("the callers of before may ask: %s", error)
            return
        self._tokens = Tokens(self._rules.issuers)
        self._stamps = _stamps(self._rules)
        log.info("%s: %d keys may ask", self._path, len(self._rules.keys))


def _stamps(rules: Rules) -> tuple[tuple[int, int, int, int], ...]:
    return tuple(_stamp(file) for file in rules.files)


def _stamp(path: Path) -> tuple[int, int, int, int]:
    """Changes with the file, and with the right to read it."""
    try:
        state = path.stat()
    except OSError:
        return 0, 0, 0, 0
    return state.st_mtime_ns, state.st_size, state.st_ino, state.st_mode
