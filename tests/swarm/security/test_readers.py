"""Whether a file of keys is read by nobody else is judged by who can really read it."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from other_user import as_another_user, needs_another_user

from swarm.errors import InvalidArgument, NotAdmitted
from swarm.link.access import read_secret
from swarm.security.files import read_private, rewrite
from swarm.security.readers import (
    ACCESS_LIST,
    FilePermissions,
    Process,
    ReadersJudgement,
    acl_of,
    judge,
)

ME, ANOTHER, OURS, THEIRS, NAMELESS = 1000, 1001, 2000, 2001, 64321
NODE = Process(ME, frozenset({ME, OURS, NAMELESS}))
ROOT = Process(0, frozenset({0}))
MEMBERS = {0: {0}, ME: {ME}, OURS: {ME, ANOTHER}, THEIRS: {ANOTHER}}
ALONE, DOUBTFUL, OTHERS = ReadersJudgement.ALONE, ReadersJudgement.DOUBTFUL, ReadersJudgement.OTHERS


def members(group: int) -> frozenset[int] | None:
    found = MEMBERS.get(group)
    return None if found is None else frozenset(found)


@pytest.mark.parametrize(
    ("what", "owner", "group", "mode", "process", "judgement"),
    [
        ("what `swarm auth add` writes", ME, ME, 0o600, NODE, ALONE),
        ("read only", ME, ME, 0o400, NODE, ALONE),
        ("a user's file that root reads", ME, ME, 0o600, ROOT, ALONE),
        ("a Secret of Kubernetes with fsGroup", 0, NAMELESS, 0o440, NODE, ALONE),
        ("the same, writable", 0, NAMELESS, 0o660, NODE, ALONE),
        ("a group of one's own", ME, ME, 0o440, NODE, ALONE),
        ("the same, left open by its owner", ME, ME, 0o640, NODE, OTHERS),
        ("a Secret of a pod that runs as root", 0, 0, 0o440, ROOT, ALONE),
        ("root's group, for its owner", ME, 0, 0o440, NODE, ALONE),
        ("a file of root's own group, left open", 0, 0, 0o640, ROOT, OTHERS),
        ("a nameless group that is not ours", 0, 4711, 0o440, NODE, DOUBTFUL),
        ("a container's group, on the host", 0, NAMELESS, 0o440, ROOT, DOUBTFUL),
        ("a group with somebody else in it", 0, OURS, 0o440, NODE, OTHERS),
        ("a group of others", ME, THEIRS, 0o640, NODE, OTHERS),
        ("a group that may only write", ME, THEIRS, 0o620, NODE, OTHERS),
        ("a Secret without defaultMode", 0, 0, 0o644, NODE, OTHERS),
        ("a Secret with fsGroup, without defaultMode", 0, NAMELESS, 0o644, NODE, OTHERS),
        ("a secret of a container's engine", 0, 0, 0o444, NODE, OTHERS),
        ("the world, for root", 0, 0, 0o604, ROOT, OTHERS),
        ("the world may write", ME, ME, 0o602, NODE, OTHERS),
    ],
)
def test_owner_group_mode_and_process_decide(
    what: str, owner: int, group: int, mode: int, process: Process, judgement: ReadersJudgement
) -> None:
    found, reason = judge(FilePermissions(owner, group, mode), process, members)
    assert found is judgement, f"{what}: {reason}"
    assert bool(reason) is (judgement is not ALONE)


@pytest.mark.parametrize(
    ("what", "users", "groups", "own_group", "judgement"),
    [
        ("LoadCredential of systemd", {ME: 4}, {}, 0, ALONE),
        ("another user is named", {ME: 4, ANOTHER: 4}, {}, 0, OTHERS),
        ("another user is named, who may nothing", {ME: 4, ANOTHER: 0}, {}, 0, ALONE),
        ("a group with others is named", {ME: 4}, {THEIRS: 4}, 0, OTHERS),
        ("a nameless group of ours is named", {}, {NAMELESS: 4}, 0, ALONE),
    ],
)
def test_an_access_list_is_judged_by_its_entries_and_not_by_its_mask(
    what: str,
    users: dict[int, int],
    groups: dict[int, int],
    own_group: int,
    judgement: ReadersJudgement,
) -> None:
    # The group's bits of a file with a list are the list's mask.
    permissions = FilePermissions(0, THEIRS, 0o440, users, groups | {THEIRS: own_group} | groups)
    assert judge(permissions, NODE, members)[0] is judgement, what


def access_list(*entries: tuple[int, int, int]) -> bytes:
    """As Linux keeps it: tag, permissions, id."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER, NO_ID = 1, 2, 4, 8, 16, 32, 0xFFFFFFFF


def test_the_mask_of_an_access_list_bounds_its_entries() -> None:
    text = access_list(
        (USER_OBJ, 6, NO_ID),
        (USER, 4, ME),
        (USER, 7, ANOTHER),
        (GROUP_OBJ, 0, NO_ID),
        (GROUP, 6, OURS),
        (MASK, 4, NO_ID),
        (OTHER, 0, NO_ID),
    )
    assert acl_of(text, group=THEIRS) == ({ME: 4, ANOTHER: 4}, {THEIRS: 0, OURS: 4})


@pytest.mark.parametrize("cut", [0, 3, 7, 13])
def test_a_damaged_access_list_is_an_error(cut: int) -> None:
    whole = access_list((USER_OBJ, 6, NO_ID), (GROUP_OBJ, 0, NO_ID))
    with pytest.raises(ValueError, match="access list"):
        acl_of(whole[:cut], group=0)


def read_by_a_pod(path: Path) -> str:
    """What `read_private` answers a process of the user and group `NAMELESS`."""
    return str(as_another_user(lambda: read_private(path), NAMELESS))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    # Another user comes through the folders of the tests.
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    path = tmp_path / "secret"
    path.write_text("seed")
    return path


@needs_another_user
@pytest.mark.integration
def test_a_process_reads_what_its_group_alone_may_and_no_more(secret: Path) -> None:
    os.chown(secret, 0, NAMELESS)
    secret.chmod(0o440)
    assert read_by_a_pod(secret) == "b'seed'"
    secret.chmod(0o444)
    assert "others may read it: `chmod 600" in read_by_a_pod(secret)
    secret.chmod(0o400)
    assert "Permission denied" in read_by_a_pod(secret)


@needs_another_user
@pytest.mark.integration
def test_a_service_reads_what_systemd_lets_it_read_by_an_access_list(secret: Path) -> None:
    secret.chmod(0o400)
    entries = [(USER_OBJ, 4, NO_ID), (USER, 4, NAMELESS), (GROUP_OBJ, 0, NO_ID), (MASK, 4, NO_ID)]
    os.setxattr(secret, ACCESS_LIST, access_list(*entries, (OTHER, 0, NO_ID)))
    assert secret.stat().st_mode & 0o777 == 0o440
    assert read_by_a_pod(secret) == "b'seed'"
    with pytest.raises(InvalidArgument, match=f"the user {NAMELESS}"):
        read_private(secret)  # by root, to whom that user is another one


@needs_another_user
def test_a_doubtful_file_is_read_and_told_of_once(
    secret: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.chown(secret, 0, 471100)
    secret.chmod(0o440)
    assert read_private(secret) == read_private(secret) == b"seed"
    assert [str(secret) in record.getMessage() for record in caplog.records] == [True]
    assert "471100" in caplog.text


def test_a_refusal_of_the_kernel_says_whose_the_file_is_and_who_asks(tmp_path: Path) -> None:
    with pytest.raises(NotAdmitted, match="this user may read"):
        read_secret(str(tmp_path / "missing"), "--credentials")


def test_a_file_that_is_written_anew_keeps_its_readers(secret: Path) -> None:
    secret.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(secret, 4711, 4712)
    before = secret.stat()
    rewrite(secret, b"another seed")
    after = secret.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (
        before.st_uid,
        before.st_gid,
        before.st_mode,
    )
    assert secret.read_bytes() == b"another seed"


def test_a_file_that_the_world_may_read_is_not_so_when_it_is_written_anew(secret: Path) -> None:
    secret.chmod(0o644)
    rewrite(secret, b"another seed")
    assert secret.stat().st_mode & 0o777 == 0o640


def test_the_world_is_refused_with_what_to_type(secret: Path) -> None:
    secret.chmod(0o604)
    with pytest.raises(InvalidArgument, match=f"others may read it: `chmod 600 {secret}`"):
        read_private(secret)
