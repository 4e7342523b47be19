"""Writes `descriptors.binpb`, the `.proto` files of this folder as a `FileDescriptorSet`:

    uv run --no-project --with grpcio-tools python nodes/gateway/grpc/protos/generate.py

The gateway builds its messages from it when it starts, and needs no compiler then.
`sources.sha256` says of which files it is made.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> None:
    files = sorted(FOLDER.glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{FOLDER}"]
    command.append(f"--descriptor_set_out={FOLDER / 'descriptors.binpb'}")
    subprocess.run([*command, *map(str, files)], check=True)
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    (FOLDER / "sources.sha256").write_text(f"{digest}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
