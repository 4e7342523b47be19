"""A release is signed as a whole: what was changed, added or taken away is found."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import needed
from support.commands import ROOT, environment, said

from swarm.security.identity import Identity
from swarm.security.trusted_keys import trust

SCRIPT = ROOT / "deploy" / "release.sh"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    identity = Identity.load_or_make(tmp_path / "key")
    trust(identity.public, "releases", tmp_path / "trusted")
    return tmp_path / "key"


@pytest.fixture
def signed(tmp_path: Path, key: Path) -> Path:
    folder = tmp_path / "dist"
    folder.mkdir()
    (folder / "swarm_mesh-1.2.3-py3-none-any.whl").write_bytes(b"wheel")
    (folder / "sbom.cdx.json").write_text("{}")
    done = said("release", "sign", str(folder), "--key", str(key))
    assert done.code == 0, done.stderr
    return folder


def verified(folder: Path) -> tuple[int, str]:
    done = said("release", "verify", str(folder), "--trust", str(folder.parent / "trusted"))
    return done.code, done.stdout + done.stderr


def test_a_release_is_verified_as_it_was_signed_with_the_version_of_its_wheel(signed: Path) -> None:
    code, text = verified(signed)
    assert (code, "release 1.2.3: 2 files" in text) == (0, True)


def changes_a_file(folder: Path) -> None:
    (folder / "sbom.cdx.json").write_text("[]")


def adds_a_file(folder: Path) -> None:
    (folder / "more.whl").write_bytes(b"")


def takes_a_file(folder: Path) -> None:
    (folder / "sbom.cdx.json").unlink()


def changes_the_document(folder: Path) -> None:
    path = folder / "release.json"
    path.write_text(path.read_text().replace("1.2.3", "1.2.4"))


def takes_the_signature(folder: Path) -> None:
    (folder / "release.sig").unlink()


def spoils_the_signature(folder: Path) -> None:
    (folder / "release.sig").write_bytes(b"\xff")


def signs_as_a_stranger(folder: Path) -> None:
    Identity.load_or_make(folder.parent / "stranger")
    assert said("release", "sign", str(folder), "--key", str(folder.parent / "stranger")).code == 0


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (changes_a_file, "not what was signed"),
        (adds_a_file, "nobody signed it"),
        (takes_a_file, "missing"),
        (changes_the_document, "altered after it was signed"),
        (takes_the_signature, "swarm release sign"),
        (spoils_the_signature, "no signature"),
        (signs_as_a_stranger, "swarm keys trust"),
    ],
)
def test_whatever_is_not_as_it_was_signed_is_refused(
    signed: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    spoil(signed)
    code, text = verified(signed)
    assert code != 0
    assert reason in text


@pytest.mark.benchmark
def test_the_script_makes_wheel_sdist_and_a_list_of_what_a_node_installs(
    tmp_path: Path, key: Path
) -> None:
    uv = os.environ.get("UV") or needed("uv", "python3-pip && pip install uv")
    folder = tmp_path / "dist"
    path = f"{Path(uv).parent}:{os.environ['PATH']}"
    given = environment({"PATH": path, "SIGN_WITH": str(key)})
    subprocess.run([SCRIPT, folder], check=True, timeout=170, env=given)
    assert verified(folder)[0] == 0
    names = {each.name for each in folder.iterdir()}
    assert {"sbom.cdx.json", "release.json", "release.sig"} < names
    assert len([name for name in names if name.endswith((".whl", ".tar.gz"))]) == 2
    bill = json.loads((folder / "sbom.cdx.json").read_text())
    parts = {each["name"]: each for each in bill["components"]}
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "swarm-mesh"
    for name in ("onnxruntime", "numpy", "nats-py", "cryptography"):
        assert parts[name]["version"]
        assert parts[name]["purl"].startswith(f"pkg:pypi/{name}@")
    assert "pytest" not in parts


@pytest.mark.parametrize("there", ["notes.txt", ".hidden", "src/main.py"])
def test_a_folder_that_the_script_did_not_make_is_left_as_it_is(tmp_path: Path, there: str) -> None:
    mine = tmp_path / "mine" / there
    mine.parent.mkdir(parents=True)
    mine.write_text("of mine")
    # No program that makes a release is found, so nothing can be made where it goes on.
    done = subprocess.run(
        ["bash", str(SCRIPT), str(tmp_path / "mine")],
        env=environment({"PATH": "/usr/bin:/bin"}),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 2
    assert "holds something else than a release" in done.stderr
    assert mine.read_text() == "of mine"
