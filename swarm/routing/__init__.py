"""Routing: which lane a request takes. Pure; see `Policy` for the interface, `policy` for names."""

from swarm.routing.adaptive import SafetyEvent
from swarm.routing.base import Estimates, Policy
from swarm.routing.candidate import ANY, Candidate, RequestInfo
from swarm.routing.desired import DEFAULT_POLICY, DesiredState, Share, parse_desired
from swarm.routing.errors import (
    BadDesiredState,
    BadPolicyOption,
    PolicyLoadFailed,
    Problem,
    UnknownPolicy,
)
from swarm.routing.registry import policy, policy_names
from swarm.routing.rendezvous import fraction, hash64, rendezvous
from swarm.routing.table import NoRoute, Route, RoutingTable

__all__ = [
    "ANY",
    "DEFAULT_POLICY",
    "BadDesiredState",
    "BadPolicyOption",
    "Candidate",
    "DesiredState",
    "Estimates",
    "NoRoute",
    "Policy",
    "PolicyLoadFailed",
    "Problem",
    "RequestInfo",
    "Route",
    "RoutingTable",
    "SafetyEvent",
    "Share",
    "UnknownPolicy",
    "fraction",
    "hash64",
    "parse_desired",
    "policy",
    "policy_names",
    "rendezvous",
]
