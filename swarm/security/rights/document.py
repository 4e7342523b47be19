"""The table of rights as a page shows it: `python -m swarm.security.rights.document` prints it."""

from __future__ import annotations

from collections.abc import Set

from swarm.security.rights.table import ABOUT, ROLES, TABLE


def markdown() -> str:
    """Two tables: the roles; each subject with who may publish and subscribe."""
    lines = ["| role | |", "|---|---|"]
    lines += [f"| {role} | {ABOUT[role]} |" for role in ROLES]
    lines += ["", "| subject | for | publish | subscribe |", "|---|---|---|---|"]
    for row in TABLE:
        queues = f", in the queues {' '.join(f'`{q}`' for q in row.queues)}" if row.queues else ""
        heard = _names(row.subscribe) + (queues if row.subscribe else "")
        lines.append(f"| `{row.subject}` | {row.about} | {_names(row.publish)} | {heard} |")
    return "\n".join(lines) + "\n"


def _names(roles: Set[str]) -> str:
    if len(roles) == len(ROLES):
        return "everybody"
    return " ".join(role for role in ROLES if role in roles)


if __name__ == "__main__":
    print(markdown(), end="")
