#!/bin/sh
# Takes out of /opt/swarm what is of no use on a device: pip and its libraries, which a scanner
# reports, and symbols for debuggers, which are 25 MB of two libraries.
set -eu
/opt/swarm/bin/pip uninstall --yes pip setuptools
find /opt/swarm -path '*/zstandard/*.so' -exec strip --strip-unneeded {} +
find /opt/swarm -path '*/uvloop/*.so' -exec strip --strip-unneeded {} +
find /opt/swarm -name __pycache__ -prune -exec rm -r {} +
