"""What is said to and about a site, and the streams in its own domain."""

from __future__ import annotations

from swarm.subjects import Subjects


class SiteSubjects(Subjects):
    """The subjects and streams of requests that wait at a site. Nothing consumes its streams, so
    there are no acks that another site's stream could take for its own."""

    __slots__ = ()

    def submit(self, site: str, agent: str, model: str) -> str:
        """Where a site stores requests of an agent that can wait."""
        return self.under("submit", site=site, agent=agent, model_name=model)

    def news(self, site: str) -> str:
        """A word that a site has stored a request, or an answer: those who wait look at once."""
        return self.under("news", site=site)

    def answers(self, site: str, agent: str) -> str:
        """The answers to what an agent has submitted at a site, stored there."""
        return self.under("answers", site=site, agent=agent)

    def read(self, site: str, agent: str) -> str:
        """How far an agent has read its answers, stored at the site."""
        return self.under("read", site=site, agent=agent)

    def submit_all(self, site: str) -> str:
        return self.under("submit", site=site) + ".*.*"

    def answers_all(self, site: str) -> str:
        return self.under("answers", site=site) + ".*"

    def read_all(self, site: str) -> str:
        return self.under("read", site=site) + ".*"

    @property
    def submitted_stream(self) -> str:
        return self.stream_of("submitted")

    @property
    def answers_stream(self) -> str:
        return self.stream_of("answers")

    @property
    def read_stream(self) -> str:
        return self.stream_of("read")
