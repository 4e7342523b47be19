"""What a gateway's status says of its doors."""

from __future__ import annotations

from swarm.fleet.documents import fields, form, table

DOOR = form(fields(texts="address", of_counts="by_code", counts="in_flight connections"))
STATUS = {"gateway": form(fields({"doors": table(DOOR)}, counts="refused"))}
