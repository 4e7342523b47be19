"""What a site adds to a client: requests that wait, and their answers. Few clients have a site of
their own, so that the work is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from swarm.client import Client
from swarm.errors import InvalidArgument
from swarm.ids import ulid
from swarm.wire.messages import Request

if TYPE_CHECKING:
    from swarm.sites.client import Results, Ticket


class Submits(Client):
    """A client that can leave requests at its site."""

    async def submit(
        self,
        model: str,
        inputs: Mapping[str, np.ndarray],
        *,
        agent: str = "",
        site: str = "",
        budget: float | None = None,
        session: str = "",
        request_id: str = "",
    ) -> Ticket:
        """Store a request that can wait at this client's site, linked to the hub or cut off; its
        answer comes by `results`. model: `NAME` or `NAME@VERSION`.

        agent: whose request it is, this client's where it is left out. site: the JetStream domain
        that stores it, that of this client's server where it is left out. budget: seconds for each
        try at the hub, where there may be many; it does not count the time of waiting. request_id:
        an agent's same request with the same one within two minutes is stored once.

        Raises `InvalidArgument` without an agent or a site, `NotFound` where the site has no store
        (`swarm site add`), `ResourceExhausted` where that is full, `Unavailable`.
        """
        from swarm.sites.client import submit

        request = Request(
            dict(inputs),
            request_id or ulid(),
            budget=budget,
            session=session,
            agent=agent or self.agent,
        )
        return await submit(self.link, self.subjects, self.site(site), model, request)

    def results(self, agent: str = "", *, site: str = "", follow: bool = True) -> Results:
        """The answers to what an agent has submitted, in the order of submission, each once:
        `async for answer in mesh.results("robot-7")`.

        An answer counts as read when the loop comes back for the next one, or by `await
        answers.read()` for the last one of a loop that is left. What a process has not read so,
        another one gets; two at the same time get the same ones. follow: wait for more, and for a
        site that is away; without, it ends with the last answer that is there. agent, site: as for
        `submit`.
        """
        from swarm.sites.client import Results

        site, agent = self.site(site), agent or self.agent
        return Results(self.link, self.subjects, site, agent, follow=follow)

    def site(self, site: str = "") -> str:
        """The site that is meant where `site` is none: that of this client's server. Raises
        `InvalidArgument` where that has no JetStream domain."""
        site = site or self.link.server_domain
        if not site:
            raise InvalidArgument(
                "requests that wait are stored in the JetStream domain of a site, and this server "
                "has none: give it `jetstream { domain: NAME }`, or name another one's site"
            )
        return site
