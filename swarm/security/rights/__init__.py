"""Which role may publish and subscribe what: one table for configurations, pages and denials."""

from swarm.security.rights.permissions import Permissions, permissions_of
from swarm.security.rights.table import ROLES, TABLE, Role

__all__ = ["ROLES", "TABLE", "Permissions", "Role", "permissions_of"]
