"""Which role may publish and subscribe what: one table, from which come configurations, the
documentation, and the sentence that tells a denial."""

from swarm.security.rights.permissions import Permissions, permissions_of
from swarm.security.rights.table import ROLES, TABLE, Role, Row

__all__ = ["ROLES", "TABLE", "Permissions", "Role", "Row", "permissions_of"]
