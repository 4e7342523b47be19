"""Where nodes tell each other what they learn, and where it is kept."""

from __future__ import annotations

from swarm.subjects import Subjects


class LearningSubjects(Subjects):
    """The subjects and buckets of learning."""

    __slots__ = ()

    def deltas(self, model: str, node: str) -> str:
        """What `node` learns of a model: sparse deltas, signed by it."""
        return self.under("deltas", model_name=model, node_id=node)

    def resync(self, model: str, node: str) -> str:
        """Requests for the whole public estimate of `node`, by neighbours that lack a delta."""
        return self.under("resync", model_name=model, node_id=node)

    def weights(self, model: str, version: str) -> str:
        """Changes of a model version's weight versions, republished from KV."""
        return self.under("weights", model_name=model, version=version)

    @property
    def deltas_bucket(self) -> str:
        """Object store of deltas that are too large for a message."""
        return self.bucket("deltas")

    @property
    def weights_bucket(self) -> str:
        """Weight versions; apart from desired state, which learners need no right to write."""
        return self.bucket("weights")
