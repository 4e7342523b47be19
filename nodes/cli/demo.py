"""`swarm demo`: the story that is asked for."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from nodes.cli.command import option, seldom
from nodes.cli.options import Json
from nodes.feature import Given, imported
from nodes.features import features


@dataclass(frozen=True)
class DemoOptions:
    """Of `swarm demo`."""

    seconds: float | None = option(
        None, "How long images are streamed, in seconds; 20 when not given.", min=6
    )
    rate: float | None = seldom(None, "Images a second; 30 when not given.", min=1, max=1000)
    secure: bool = option(
        False,
        "With TLS, users and an encrypted model; certificates are rotated, and the killed "
        "shard's credentials revoked.",
    )
    json: Json = False


def demo(options: DemoOptions, given: Given) -> int:
    """Show a takeover on this machine: three shards, a fallback, a live edge, one kill.

    Exits with 1 if an answer was lost or wrong, or a protection of --secure did not hold; in a
    story of its own, if one of its promises is broken."""
    switches = {name: value for each in given.values() for name, value in vars(each).items()}
    told = {switch: story for each in features() for switch, story in each.stories.items()}
    stories = [story for switch, story in told.items() if switches[switch]]
    if len(stories) + options.secure > 1:
        raise typer.BadParameter("--secure and the other stories are told one at a time: give one")
    companions = [companion for each in features() for companion in each.companions(given)]
    from nodes.demo.frame import StoryOptions

    asked = StoryOptions(options.seconds, options.rate, options.json, companions, given)
    if stories:
        return int(imported(stories[0])(asked))
    from nodes.demo.demo import tell

    return tell(asked, options.secure)
