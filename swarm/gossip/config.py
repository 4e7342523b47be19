"""Settings of the gossip: every knob with its unit, its effect and its formula.

Three presets are measured starting points: `LOCAL` (one machine), `LAN` (the default) and `WAN`
(links between sites). A value outside its range raises `ValueError` when the config is made.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GossipConfig:
    """How one node gossips. All times are seconds of the node's own monotonic clock.

    Raises `ValueError` when a value makes no sense or two values contradict each other.
    """

    interval: float = 0.2
    """Seconds between two rounds (two calls of `tick`). Detection, spread and traffic scale with
    it: a state reaches n nodes in about log(n)/log(1 + 2 * fanout) + 3 rounds."""

    fanout: int = 3
    """Peers contacted each round. A crash escapes every peer for r rounds with probability
    exp(-fanout * r): 0.25 % for 3 peers and 2 rounds. Traffic is proportional to it."""

    calm_above: int = 24
    """Living nodes above which a round contacts fewer peers while there is no news: fanout *
    calm_above / n, and one a second at least (see `swarm.gossip.fanout`)."""

    helpers: int = 3
    """Peers asked to try a silent node (SWIM's k). At packet loss p, all of them fail on a living
    node with probability (1 - (1 - p)^4)^helpers: 4 % at 10 % loss."""

    message_bytes: int = 8192
    """Bytes that a sent message never exceeds, authentication included. At least 1024."""

    refuse_bytes: int = 65536
    """Bytes above which a received message is refused unread."""

    max_nodes: int = 4096
    """Nodes known at once, tombstones and ourselves included. Memory is about max_nodes * (0.5 KB
    + the node's values). A full table drops its oldest tombstone, then refuses newcomers."""

    max_keys: int = 64
    """Keys of one node, deleted ones included until they expire."""

    value_bytes: int = 1024
    """Bytes of one value as MessagePack."""

    user_nodes: int = 64
    """Nodes of one user known at once, tombstones included, where the server's rights bind a node's
    name to its user (`Gossip.bind_users`): as many names a member can make up, which all answer. A
    full user drops its oldest tombstone, then is refused newcomers."""

    user_checks: int = 2
    """Requests each round, on the word of others, to nodes of one user that have never answered us,
    where names are bound. Who makes up names has no more sent on their account."""

    answer_bytes: int = 262144
    """Bytes of answers each round, whoever asks; beyond them an answer only says that we live. At
    least message_bytes. An honest round brings about fanout questions; when all nodes start at
    once, one of them may get a question of each."""

    learn_rate: float = 2000.0
    """New nodes learned per second, on average and as a burst; more are refused and come back with
    a later exchange. A node that joins a fleet of n needs at least n / learn_rate seconds."""

    tombstone: float = 3600.0
    """Seconds for which a dead or departed node, or a deleted key, is remembered. It must exceed
    the longest split that is to heal without `add_peer`, and the longest sleep of a process: one
    that slept for more than tombstone / 2 forgets all it knew, lest it revive the dead."""

    retransmit: int = 4
    """A change is told retransmit * ceil(log10(n + 1)) times by each node that learns it
    (memberlist's RetransmitMult); a node is missed with probability about exp(-that)."""

    window_min: int = 8
    """Nodes listed in one round's repair window while peers agree; a calm fleet's has more (see
    `swarm.gossip.fanout`)."""

    window_max: int = 64
    """Nodes listed in a repair window while they do not: the window doubles after an exchange that
    repaired something, and halves after a pass around all nodes that did not. While it is wide,
    each contact of a round carries one. What rumours missed is repaired within about
    n / window_min rounds, a newcomer's lack of all within n / (fanout * window_max)."""

    timeout_min: float = 0.1
    """Least seconds to wait for an answer. It should cover a garbage collection of the peer."""

    timeout_max: float = 0.5
    """Most seconds to wait for an answer, before the local health multiplier."""

    phi: float = 8.0
    """Doubt at which an answer is late: the wait is the time at which the phi-accrual detector says
    that a living peer would have answered but for a chance of 10^-phi."""

    suspicion: float = 4.0
    """Least rounds times log10(n) between suspicion and death: suspicion * max(1, log10 n) *
    interval seconds, when `accusers` others suspect the node too."""

    suspicion_max: float = 3.0
    """A suspicion that nobody shares lasts this many times longer (Lifeguard's beta)."""

    accusers: int = 3
    """Independent accusers that shorten a suspicion to its least (Lifeguard's K)."""

    tell_after: int = 3
    """Own failed attempts after which a suspicion is told to others, and before which nobody is
    declared dead for silence. Keeps chance losses from becoming everyone's rumour."""

    health_max: int = 8
    """Ceiling of the local health score (Lifeguard's S): a node that fails itself waits up to
    (1 + health_max) times longer before it blames others."""

    claims_per_round: int = 64
    """Claims of others (deaths, departures, returns) that are checked each round, and pings made
    for others; more wait for the next time they are told."""

    reprobes: int = 8
    """Suspects tried again each round."""

    rebirth: float = 1.0
    """Least seconds between two incarnations of a node that refutes its own death. Bounds what a
    lying peer can make it broadcast."""

    pause_rounds: float = 5.0
    """A gap between two ticks above pause_rounds * interval means that this process itself was
    stopped: what timed out meanwhile is not held against the peers."""

    def __post_init__(self) -> None:
        positive = (
            "interval fanout calm_above max_nodes max_keys value_bytes learn_rate tombstone "
            "retransmit "
            "window_min timeout_min phi suspicion accusers tell_after claims_per_round reprobes "
            "pause_rounds user_nodes user_checks"
        )
        for name in positive.split():
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("helpers", "health_max", "rebirth"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be below 0, not {getattr(self, name)}")
        for low, high in (("window_min", "window_max"), ("timeout_min", "timeout_max")):
            if getattr(self, high) < getattr(self, low):
                raise ValueError(f"{high} must not be below {low}")
        if not 1024 <= self.message_bytes <= self.refuse_bytes:
            raise ValueError("message_bytes must be between 1024 and refuse_bytes")
        if self.answer_bytes < self.message_bytes:
            raise ValueError("answer_bytes must not be below message_bytes")
        if self.value_bytes + 128 > self.state_bytes:
            raise ValueError("value_bytes must leave room in message_bytes")
        if self.window_max > 256 or self.max_keys > 256:
            raise ValueError("window_max and max_keys must not exceed 256, the longest list sent")
        if self.phi > 15:
            raise ValueError("phi must not exceed 15: a double knows no rarer chance")
        if self.suspicion_max < 1:
            raise ValueError("suspicion_max must not be below 1")

    @property
    def state_bytes(self) -> int:
        """Bytes of all of one node's keys and values: what always fits in one message, so that a
        node's state travels whole or not at all."""
        return self.message_bytes - 512


LAN = GossipConfig()
"""One site: round trips up to tens of milliseconds."""

LOCAL = GossipConfig(
    interval=0.05, timeout_min=0.1, timeout_max=0.3, suspicion=5.0, tombstone=600.0
)
"""One machine: round trips below a millisecond, but processes that compete for its cores."""

WAN = GossipConfig(interval=0.5, timeout_min=0.5, timeout_max=3.0, suspicion=5.0, tombstone=86400.0)
"""Sites behind slow links: round trips up to a second, splits of hours."""
