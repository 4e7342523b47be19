"""Writes `descriptors.py` from the `.proto` files of this folder:

    uv run --no-project --with grpcio-tools python nodes/gateway/grpc/protos/generate.py

The gateway builds its messages from descriptors when it starts, and needs no compiler then.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import textwrap
from pathlib import Path
from tempfile import TemporaryDirectory

FOLDER = Path(__file__).parent
WIDTH = 96  # characters of a line


def sources() -> list[Path]:
    """The `.proto` files, in the order in which they are compiled."""
    return sorted(FOLDER.glob("*.proto"))


def digest(files: list[Path]) -> str:
    """SHA-256 of the files' contents, one after the other, in hexadecimal."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def compiled(files: list[Path]) -> bytes:
    """A serialized `FileDescriptorSet`. Raises `CalledProcessError`."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "set"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{FOLDER}"]
        subprocess.run([*command, f"--descriptor_set_out={path}", *map(str, files)], check=True)
        return path.read_bytes()


def main() -> None:
    files = sources()
    text = "\n".join(textwrap.wrap(base64.b64encode(compiled(files)).decode(), WIDTH))
    (FOLDER / "descriptors.py").write_text(
        '"""The `.proto` files of this folder as a `FileDescriptorSet`, by `generate.py`."""\n\n'
        f'SOURCES = "{digest(files)}"  # SHA-256 of the files\n'
        f'DESCRIPTORS = """\n{text}\n"""  # base64\n'
    )


if __name__ == "__main__":
    main()
