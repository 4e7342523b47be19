"""Writes what Debian asks of a package beside its program: describe.py TREE FOLDER MAINTAINER

`copyright` with the licence of each library in the environment TREE, as its own metadata says,
`changelog.gz`, and the version.
"""

from __future__ import annotations

import gzip
import sys
from email.utils import formatdate
from importlib.metadata import Distribution, distributions
from pathlib import Path

HEAD = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: swarm-mesh
Comment: Libraries lie in /opt/swarm; the folder *.dist-info of each has its licence's text.

Files: *
Copyright: 2026 The swarm authors
License: Apache-2.0
 On Debian systems the full text is in /usr/share/common-licenses/Apache-2.0.
"""
CHANGELOG = """\
swarm-node ({version}) unstable; urgency=medium

  * Release {version} of swarm-mesh.

 -- {maintainer}  {date}
"""


def licence(library: Distribution) -> str:
    """The name of a library's licence, in one line."""
    about = library.metadata
    classified = [
        each.rpartition(" :: ")[2]
        for each in about.get_all("Classifier") or []
        if each.startswith("License :: ")
    ]
    told = about["License-Expression"] or " or ".join(classified) or about["License"] or ""
    return " ".join(told.split())[:200] or "as its files say"


def main(tree: str, folder: str, maintainer: str) -> None:
    """Write the files."""
    (packages,) = Path(tree).glob("lib/python*/site-packages")
    libraries = sorted(distributions(path=[str(packages)]), key=lambda each: each.name.lower())
    (version,) = (each.version for each in libraries if each.name == "swarm-mesh")
    listed = [
        f" {each.name} {each.version}: {licence(each)}\n"
        for each in libraries
        if each.name != "swarm-mesh"
    ]
    target = Path(folder)
    target.mkdir()
    (target / "version").write_text(version)
    where = f"Files: opt/swarm/{packages.relative_to(tree)}/*\n"
    block = f"\n{where}Copyright: the authors of each library\nLicense: of-each\n"
    (target / "copyright").write_text("".join([HEAD, block, *listed]))
    date = formatdate(usegmt=False)
    news = CHANGELOG.format(version=version, maintainer=maintainer, date=date)
    (target / "changelog.gz").write_bytes(gzip.compress(news.encode(), 9, mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
