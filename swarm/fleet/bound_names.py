"""Whether the server's rights bind a node's name to its user: then few names of one user are taken.

A node's id begins with its user's name, which is a token of its own in the subjects that a node
speaks on (`swarm.subjects.speaker`). In a mesh under rights nobody may publish on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from swarm.link.grants import Grants
from swarm.subjects import Subjects, parts_of

# Nodes of one user that a reader of statuses keeps there: as many as gossip does (`user_nodes`),
# which a client does not import.
MOST_OF_USER = 64


def is_bound(grants: Grants, subjects: Subjects) -> bool:
    """Whether the user of these grants is in a mesh under rights."""
    return not grants.may_publish(subjects.status_all)


def of_user(node: str, known: Iterable[str]) -> list[str]:
    """Those of the known nodes that are of the same user as `node`."""
    user = parts_of(node)[0]
    return [other for other in known if parts_of(other)[0] == user]
