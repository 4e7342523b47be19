"""Who is alive: SWIM's probes and suspicion, on our own evidence only.

Das, Gupta, Motivala: "SWIM", DSN 2002. Every gossip request is also a ping.

- Nobody subscribes to the peer's subject ("no responders"): it is dead, at once.
- No answer in time: it is tried again, and by `helpers` others. Nothing from any of them: it is
  suspected. It is tried each round; when it stays silent the suspicion is told, and after
  `suspicion_seconds` it is dead. An answer to anyone ends it; a told suspicion ends when the
  suspect refutes it with a higher heartbeat.
- Others claim that it died, left or returned: it is asked. Their word alone changes nothing, but
  independent accusers shorten our own suspicion.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf
from random import Random

import msgpack

from swarm.gossip.config import GossipConfig
from swarm.gossip.effects import Effect, Event, GossipRequest, Send
from swarm.gossip.exchange import GossipExchange
from swarm.gossip.fanout import Fanout, WatchedPeers
from swarm.gossip.health import Doubt, LocalHealth, suspicion_seconds
from swarm.gossip.phi import PhiDetector, deviations
from swarm.gossip.state import ALIVE, DEAD, LEFT, SUSPECT, Entry
from swarm.gossip.table import Table
from swarm.subjects import parts_of

# Rounds between two exchanges of a pair, where a round reaches every peer. (Measured: an exchange
# wakes two nodes and the server, 1 to 1.5 ms of CPU beside other work.)
PAIR_ROUNDS = 2
# Rounds by which an exchange may come early: a round that is a little short must not put it off.
_EARLY_ROUNDS = 0.25
_MOST_NOTED_NODES = 64  # nodes whose last exchange is kept; a forgotten one costs an exchange
_MOST_PENDING = 4096  # requests whose outcome the driver may still owe


@dataclass(slots=True)
class Pending:
    """A request under way.

    claim: the word of others that it checks, if any. client: the node for which we ask, if not for
    ourselves. window: whether it carries a repair window.
    """

    node: str
    sent: float
    incarnation: int
    claim: Entry | None = None
    client: str | None = None
    window: bool = False


class FailureDetector:
    """Keeps the requests under way and the doubts about peers.

    Only this node's own evidence decides. A claim of others makes it ask the peer in question.
    """

    def __init__(
        self,
        config: GossipConfig,
        table: Table,
        exchange: GossipExchange,
        counters: Counter[str],
        rng: Random,
    ) -> None:
        self._config = config
        self._table = table
        self._exchange = exchange
        self._counters = counters
        self._rng = rng
        self._deviations = deviations(config.phi)
        self._phi = PhiDetector(jitter=config.timeout_min / self._deviations)
        self._token = 0
        self._pending: dict[int, Pending] = {}
        self._asked: Counter[str] = Counter()  # requests under way by node
        self._quota = config.claims_per_round
        self._checked: Counter[str] = Counter()  # this round, of each user's unmet nodes
        self.health = LocalHealth(config.health_max)
        self.fanout = Fanout(config, rng.random())
        self.watch = WatchedPeers(config.interval)
        # The last exchange with each peer, kept only where a round reaches every peer.
        self._met: dict[str, float] = {}
        # The last question to each peer whose process was said to have ended.
        self._asked_now: dict[str, float] = {}
        self._spread_at = -inf
        self.doubts: dict[str, Doubt] = {}

    # -- requests ----------------------------------------------------------------------------------

    def request(
        self,
        node: str,
        now: float,
        *,
        news: bool = False,
        window: bool = False,
        claim: Entry | None = None,
        client: str | None = None,
        hops: int = 1,
    ) -> GossipRequest:
        """A SYN to `node`, with its deadline: `hops` round trips."""
        config = self._config
        about = msgpack.packb(claim) if claim else None
        payload = self._exchange.syn(node, about, news, window)
        self._token += 1
        known = self._table.nodes.get(node)
        pending = Pending(node, now, known.incarnation if known else 0, claim, client, window)
        self._pending[self._token] = pending
        self._asked[node] += 1
        if len(self._pending) > _MOST_PENDING:
            self.settle(next(iter(self._pending)))
            self._counters["outcomes_missing"] += 1
        wait = min(config.timeout_max, max(config.timeout_min, self._phi.wait(self._deviations)))
        return GossipRequest(node, payload, wait * hops * self.health.factor, self._token)

    def pending(self, token: int) -> Pending | None:
        """The request of this token, while its outcome is awaited."""
        return self._pending.get(token)

    def settle(self, token: int) -> Pending | None:
        """The outcome of a request has come; None when it is not awaited (any more)."""
        pending = self._pending.pop(token, None)
        if pending is not None:
            self._asked[pending.node] -= 1
            if self._asked[pending.node] <= 0:
                del self._asked[pending.node]
        return pending

    def answered(self, pending: Pending, now: float) -> list[Effect]:
        """A peer answered in time."""
        self.met(pending.node, pending.sent)
        known = self._table.nodes.get(pending.node)
        if known is not None and not known.final:
            self._table.met.add(pending.node)
        self._phi.observe(now - pending.sent)
        self.health.better()
        if pending.client is not None:
            frame = self._exchange.frame("probed")
            frame.extra("p", msgpack.packb(pending.node))
            return [Send(pending.client, frame.encode())]
        state = self._table.nodes.get(pending.node)
        if pending.claim and state and pending.claim[4] >= DEAD and not state.final:
            self._counters["claims_rejected"] += 1
        return []

    def no_responders(self, pending: Pending, now: float) -> list[Effect]:
        """Nobody subscribes to the peer's subject: its process has ended, or is cut off."""
        state = self._table.nodes.get(pending.node)
        if state is None or state.final:
            return []
        claim = pending.claim
        return self._bury(pending.node, LEFT if claim and claim[4] == LEFT else DEAD, now)

    def timed_out(self, pending: Pending, now: float) -> list[Effect]:
        """No answer in time, which may be our own fault."""
        if pending.client is not None:
            return []
        node = pending.node
        state = self._table.nodes.get(node)
        if state is None or state.final:
            return []
        doubt = self.doubts.get(node)
        if doubt is None or not doubt.firsthand:
            # Only a peer's first missed answer counts: its further silence is no new sign that we
            # are slow.
            self.health.worse()
            self.doubts[node] = fresh = Doubt(pending.sent, firsthand=True, counted=now)
            if doubt is not None:
                fresh.accusers = doubt.accusers
            probe = self._exchange.frame("probe")
            probe.extra("p", msgpack.packb(node))
            payload = probe.encode()
            helpers = self._table.random_peers(self._config.helpers, without=node)
            effects: list[Effect] = [Send(helper, payload) for helper in helpers]
            effects.append(self.request(node, now, hops=2))
            return effects
        if pending.sent < doubt.counted:
            return []  # the same silence, seen twice
        return self._failed_again(node, doubt, now)

    def _failed_again(self, node: str, doubt: Doubt, now: float) -> list[Effect]:
        config = self._config
        state = self._table.nodes[node]
        events: list[Event] = []
        doubt.failures += 1
        doubt.counted = now
        if doubt.since is None:
            doubt.since = now
            if state.status == ALIVE:
                events.append(Event("suspected", node, "it does not answer"))
        if doubt.failures >= config.tell_after:
            if state.status == ALIVE:
                self._exchange.hear_liveness(state, state.heartbeat, SUSPECT, [])
            allowed = suspicion_seconds(config, self._table.alive, len(doubt.accusers))
            if now - doubt.since >= allowed * self.health.factor:
                return self._bury(node, DEAD, now)
        return list(events)

    def _bury(self, node: str, status: int, now: float) -> list[Effect]:
        events: list[Event] = []
        self.doubts.pop(node, None)
        matters = not self._table.is_crowd(node)
        self._exchange.bury(self._table.nodes[node], status, events, now)
        return [*events, *self._spread(now)] if matters else list(events)

    def _spread(self, now: float) -> list[GossipRequest]:
        """Tell of a death at once: otherwise the node that takes over begins a round later. Of
        several deaths at one moment only the first is told at once, the others by rounds."""
        if now - self._spread_at < self._config.interval / 4:
            return []
        self._spread_at = now
        peers = self._table.next_peers(self._config.fanout)
        return [self.request(peer, now, news=True) for peer in peers if not self.doubted(peer)]

    # -- what others say ---------------------------------------------------------------------------

    def contact(self, node: str) -> list[Effect]:
        """A sign of life came. It ends a doubt that was not told to others."""
        doubt = self.doubts.get(node)
        state = self._table.nodes.get(node)
        if doubt is None or state is None or state.status != ALIVE:
            return []
        del self.doubts[node]
        return [Event("refuted", node, "it answered")] if doubt.since is not None else []

    def note(self, events: list[Event], accuser: str) -> None:
        """Suspicions and refutations that a message of `accuser` brought."""
        for event in events:
            if event.kind == "suspected":
                self._accuse(event.node, accuser)
            elif event.kind in ("refuted", "returned", "left", "died"):
                self.doubts.pop(event.node, None)

    def _accuse(self, node: str, accuser: str) -> None:
        doubt = self.doubts.setdefault(node, Doubt(0.0, firsthand=False))
        if len(doubt.accusers) < self._config.accusers:
            doubt.accusers.add(accuser)

    def check(self, claims: list[Entry], source: str, now: float) -> list[Effect]:
        """Ask the nodes about which `source` claims a death, departure, return or incarnation."""
        effects: list[Effect] = []
        for claim in claims:
            node = claim[0]
            if claim[4] >= DEAD:
                self._accuse(node, source)
            if self._asked[node] and any(
                p.node == node and p.claim and p.claim[1] == claim[1]
                for p in self._pending.values()
            ):
                continue
            if not self._spend(node):
                self._counters["claims_deferred"] += 1
                continue
            effects.append(self.request(node, now, claim=claim))
        return effects

    def probe(self, node: str | None, client: str, now: float) -> list[Effect]:
        """`client` asks us to try `node`."""
        if node is None or node == self._table.me or node not in self._table.nodes:
            return []
        if not self._spend(node):
            self._counters["probes_deferred"] += 1
            return []
        return [self.request(node, now, client=client)]

    def _spend(self, node: str) -> bool:
        if self._table.user_nodes and node not in self._table.met:
            user = parts_of(node)[0]
            if self._checked[user] >= self._config.user_checks:
                return False
            self._checked[user] += 1
        self._quota -= 1
        return self._quota >= 0

    # -- rounds ------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Try again those who did not answer; each at most once at a time."""
        self._quota = self._config.claims_per_round
        self._checked.clear()
        nodes = self._table.nodes
        for node in [n for n in self.doubts if n not in nodes or nodes[n].final]:
            del self.doubts[node]
        chosen = []
        for node, doubt in self.doubts.items():
            if doubt.firsthand and not self._asked[node]:
                chosen.append(node)
                if len(chosen) == self._config.reprobes:
                    break
        for node in chosen:
            self.doubts[node] = self.doubts.pop(node)  # the others come first next time
        return [self.request(node, now) for node in chosen]

    def paused(self) -> None:
        """This process was stopped for a while: timeouts of that time count against no peer."""
        self.health.worse(2)
        self._pending.clear()
        self._asked.clear()
        nodes = self._table.nodes
        for node in [n for n in self.doubts if n not in nodes or nodes[n].status == ALIVE]:
            del self.doubts[node]

    @property
    def alone(self) -> bool:
        """Whether no peer is known that lives."""
        return self._table.alive == 1

    @property
    def everybody(self) -> bool:
        """Whether a round reaches every peer."""
        return self._table.alive <= self._config.fanout + 1

    def met(self, node: str, now: float) -> None:
        """There was an exchange, whoever began it."""
        _note(self._met, node, now, self.everybody)

    def due(self, node: str, now: float) -> bool:
        """Whether this round should contact `node`. Doubted nodes have a schedule of their own.

        Where a round reaches every peer, each pair has an exchange every other round: a crash is
        still met within three rounds.
        """
        if self.doubted(node):
            return False
        if not self.everybody:
            return True
        rounds = (now - self._met.get(node, -inf)) / self._config.interval + _EARLY_ROUNDS
        return rounds >= min(PAIR_ROUNDS, self._table.alive - 1)

    def hurry(self) -> None:
        """There is news: the next rounds contact everybody, as far as a round can."""
        self._met.clear()
        self.fanout.hurry(self._table.alive)

    def watched(self, now: float) -> list[Effect]:
        """Checks of the watched nodes that are due, in a fleet whose rounds contact fewer peers."""
        if self._table.alive <= self._config.calm_above:
            return []
        nodes = self._table.nodes
        return [
            self.request(node, now)
            for node in self.watch.due(now)
            if node in nodes and not nodes[node].final and not self._asked[node]
        ]

    def ask_now(self, node: str, now: float) -> list[Effect]:
        """Ask a node whose process is said to have ended, at most once a round."""
        known = self._table.nodes.get(node)
        if known is None or known.final or self._asked[node]:
            return []
        if now - self._asked_now.get(node, -inf) < self._config.interval:
            return []  # a process that lives, but has no socket, is reported again and again
        _note(self._asked_now, node, now, True)
        return [self.request(node, now)]

    def doubted(self, node: str) -> bool:
        """Whether `node` missed an answer to us, so that it is tried again each round."""
        doubt = self.doubts.get(node)
        return doubt is not None and doubt.firsthand

    def suspects(self, node: str) -> bool:
        """Whether we suspect `node` ourselves, told or not."""
        doubt = self.doubts.get(node)
        return doubt is not None and doubt.since is not None

    def phi(self, node: str, now: float) -> float:
        """The level of doubt about `node`, 0 when it owes no answer."""
        doubt = self.doubts.get(node)
        return self._phi.phi(now - doubt.began) if doubt and doubt.firsthand else 0.0


def _note(times: dict[str, float], node: str, now: float, wanted: bool) -> None:
    """Keep `now` for `node`, in bounded memory; keep nothing where it is not wanted."""
    if not wanted or len(times) >= _MOST_NOTED_NODES:
        times.clear()
    if wanted:
        times[node] = now
