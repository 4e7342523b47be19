"""New releases of the node software, on devices, by waves."""

from __future__ import annotations

from nodes.feature import CommandGroup, Commands, Feature

COMMANDS: Commands = {
    "Fleet": {
        "install": CommandGroup(
            "A node as a service of this machine.",
            {
                "Service": {
                    "node": "nodes.upgrade.commands.install:node",
                    "updater": "nodes.upgrade.commands.install:updater",
                    "remove": "nodes.upgrade.commands.install:remove",
                }
            },
        ),
        "fleet": CommandGroup(
            "The node software of many devices.",
            {
                "Commands": {
                    "upgrade": "nodes.upgrade.commands.fleet:upgrade",
                    "updater": "nodes.upgrade.commands.fleet:updater",
                }
            },
        ),
        "release": CommandGroup(
            "Releases of the node software.",
            {
                "Commands": {
                    "push": "nodes.upgrade.commands.release:push",
                    "sign": "nodes.upgrade.commands.release:sign",
                    "verify": "nodes.upgrade.commands.release:verify",
                }
            },
        ),
        "deploy": CommandGroup(
            "Files that run a model's nodes elsewhere.",
            {"Elsewhere": {"k8s": "nodes.upgrade.commands.deploy:k8s"}},
        ),
    }
}
FEATURE = Feature("upgrade", commands=COMMANDS)
