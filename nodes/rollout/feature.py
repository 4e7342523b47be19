"""A new version by steps of traffic, under guards."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nodes.feature import Commands, Feature, HeardMesh, ModelLines, Part, Surroundings


def _parts(around: Surroundings) -> list[Part]:
    from nodes.rollout.judging import Judging

    return [Judging(around.connection, around.versions)]


def _model_lines(heard: HeardMesh, models: Callable[[], Iterable[str]]) -> ModelLines:
    from nodes.rollout.watched import RolloutWatch

    return RolloutWatch(heard.link, heard.subjects, heard.registry, models)


COMMANDS: Commands = {
    "Choose the version that runs": {
        "model promote": "nodes.rollout.commands.rollout:promote",
        "model status": "nodes.rollout.commands.rollout:status",
    }
}
FEATURE = Feature(
    "rollout",
    figures="nodes.rollout.figures",
    tells=["rolled-out", "rolled-back"],
    parts=_parts,
    model_lines=_model_lines,
    commands=COMMANDS,
)
