"""Where records are published and kept."""

from __future__ import annotations

from swarm.subjects import ANY, Subjects, token


class RecordSubjects(Subjects):
    """The subjects and streams of records."""

    __slots__ = ()

    def audit(self, agent: str) -> str:
        """Records of the requests of an agent, or of an operator's acts."""
        return self.under("audit", agent=agent)

    @property
    def audit_all(self) -> str:
        return f"{self.root}.audit.*"

    @property
    def audit_stream(self) -> str:
        return self.stream_of("audit")

    def tap(self, model: str, version: str, stage: int, lane: str = ANY) -> str:
        """Copies of what enters a lane, while `swarm record` runs."""
        of_version = self.under("tap", model_name=model, version=version)
        return f"{of_version}.{int(stage)}.{token(lane, 'lane')}"

    def record(self, model: str, version: str, request: str, stage: int) -> str:
        """What one request brought to a stage, kept for `swarm replay`."""
        of_request = self.under("record", model_name=model, version=version, request_id=request)
        return f"{of_request}.{int(stage)}"

    def record_all(self, model: str) -> str:
        return self.under("record", model_name=model) + ".>"

    def record_stream(self, model: str) -> str:
        return f"{self.stream_of('record')}={token(model, 'model name')}"
