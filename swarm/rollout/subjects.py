"""What requesters and judges say of a version under rollout."""

from __future__ import annotations

from swarm.subjects import Subjects, speaker


class RolloutSubjects(Subjects):
    """The subjects of rollouts."""

    __slots__ = ()

    def reports(self, model: str, reporter: str) -> str:
        """What a requester has observed of a version under rollout."""
        return self.under("reports", model_name=model, reporter=reporter)

    def reports_all(self, model: str) -> str:
        return self.under("reports", model_name=model) + ".*"

    def guards(self, model: str, node: str) -> str:
        """What a judge of a rollout says of its guards."""
        return f"{self.under('guards', model_name=model)}.{self.named(node)}"

    def guards_all(self, model: str) -> str:
        return self.under("guards", model_name=model) + (".*.*" if self.by_user else ".*")


def judge_of(subject: str, headers: object = None) -> str:
    """The node that states how guards stand, as `speaker` is of a status."""
    return speaker(subject, headers, "guards", 4)
