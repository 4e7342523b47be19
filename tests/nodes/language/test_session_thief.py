"""Who knows a session's id, and what other clients may see of it, gets and ends nothing of it."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from support.waiting import eventually

import swarm
from nodes.up.mesh import LocalMesh
from swarm.language.request import GenerateRequest, Opening
from swarm.language.steps import Forward, Gone, PassedRequest, Token, TokenStep, encode_words
from swarm.language.subjects import LanguageSubjects
from swarm.link import LinkMessage
from swarm.wire.maps import unpack_map

from .language import MODEL, prompt, undisturbed

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

TOKENS, BEFORE = 300, 5  # of the victim, and those that it has when the thief begins
UNKNOWN = "sid-" + "0" * 32  # the id of no session
NOT_YOURS = "PERMISSION_DENIED"


@dataclass
class Thief:
    """A client of its own connection. heard: what came to its inbox, in order."""

    local: LocalMesh
    mesh: swarm.Mesh
    heard: list[LinkMessage] = field(default_factory=list)
    inbox: str = ""

    @property
    def documents(self) -> list[dict[str, object]]:
        """Those of its own requests are JSON; tokens of others' would be MessagePack."""
        data = [bytes(message.data) for message in self.heard if message.data]
        return [json.loads(d) if d.startswith(b"{") else unpack_map(d, len(d)) for d in data]

    def asks(self, doc: dict[str, object]) -> None:
        whole = {"prompt": prompt(3), "max_tokens": 40} | doc
        subject = self.mesh.subjects.under("generate", model=MODEL)
        self.mesh.link.publish(subject, json.dumps(whole).encode(), self.inbox)

    def tells(self, subject: str, data: bytes, headers: bytes = b"") -> None:
        self.mesh.link.publish(subject, data, "", headers)


@pytest_asyncio.fixture(loop_scope="session")
async def thief(local: LocalMesh) -> AsyncIterator[Thief]:
    async with swarm.connect(local.url, mesh=local.name) as mesh:
        made = Thief(local, mesh)
        made.inbox = mesh.link.expect(made.heard.append)
        yield made


# --- what it tries ------------------------------------------------------------------------

Act = Callable[[Thief, str], None]


def _goes_on(**claimed: object) -> Act:
    def act(thief: Thief, session: str) -> None:
        thief.asks({"session": session} | claimed)

    return act


def cancels(thief: Thief, session: str) -> None:
    subject = thief.mesh.subjects.cancel(MODEL, "1")
    for text in (session, session.removeprefix("sid-")):
        thief.tells(subject, text.encode())


def _steps(make: Callable[[Thief, str], Forward]) -> Act:
    """What a node says to another one, said by somebody who is none."""

    def act(thief: Thief, session: str) -> None:
        for node in thief.local.supervisor.nodes:
            for stage in (1, 2, 3):
                id_ = (thief.local.status_of(node) or {})["node"]
                subject = LanguageSubjects.of(thief.mesh.subjects).steps(MODEL, "1", stage, id_)
                for name in (session, session.removeprefix("sid-")):
                    thief.tells(subject, b"".join(make(thief, name).parts()))

    return act


def _follows(thief: Thief, name: str) -> Forward:
    return Forward(thief.inbox, [_step(thief, name)], follow=True)


def _step(thief: Thief, name: str) -> TokenStep:
    return TokenStep(name, 99, 0, 1, (1,), opening=Opening(thief.inbox, thief.inbox, 1, 200))


def _asks(thief: Thief, name: str) -> Forward:
    request = GenerateRequest(session=name, prompt=tuple(prompt(3)), max_tokens=40, epoch=99)
    return Forward(thief.inbox, asks=[PassedRequest(request, thief.inbox)])


def gone_clients(thief: Thief, session: str) -> None:
    """The subjects at which nodes hear of clients that are gone, near those that it was shown."""
    shown = {message.reply for message in thief.heard if message.reply}
    assert shown, "its own tokens name such a subject"
    for subject in shown:
        inbox, _, last = subject.rpartition(".")
        number = int(last, 16) if set(last) <= set("0123456789abcdef") else 0
        word = Token(session, len(prompt(0)) + BEFORE + 3, 0, "stop")
        for near in set(range(max(0, number - 40), number + 40)) - {number}:
            for data in (encode_words("n", [Gone(session)]), encode_words("n", [word])):
                thief.tells(f"{inbox}.{near:x}", data)
            thief.tells(f"{inbox}.{near:x}", b"", b"NATS/1.0 503\r\n\r\n")


REFUSED = {
    "higher epoch": _goes_on(epoch=9),
    "highest epoch": _goes_on(epoch=1 << 31),
    "equal epoch": _goes_on(epoch=0),
    "tokens so far": _goes_on(made=[1, 2, 3], epoch=1),
    "its head": _goes_on(head="shard-1-abc", epoch=0),
    "a key that it drew": _goes_on(key=secrets.token_hex(16), epoch=9),
    "a key of its own, equal epoch": _goes_on(key=secrets.token_hex(16)),
}
SILENT = {
    "cancel": cancels,
    "close": _steps(lambda thief, name: Forward(thief.inbox, closed={name: 99})),
    "leave": _steps(lambda thief, name: Forward(thief.inbox, left=[name])),
    "step": _steps(lambda thief, name: Forward(thief.inbox, [_step(thief, name)], probe=True)),
    "follow": _steps(_follows),
    "ask as a node": _steps(_asks),
    "gone": gone_clients,
}


async def _its_own_answer(thief: Thief) -> None:
    """An honest answer of the thief, which shows it what clients are shown."""
    thief.asks({"max_tokens": 3})
    await eventually(lambda: any("finish" in doc for doc in thief.documents), "its own answer")


async def _robbed(local: LocalMesh, thief: Thief, act: Act) -> list[int]:
    """The victim's tokens, of whom the thief takes what it can once some have come."""
    victim = local.mesh.generate(MODEL, prompt(0), max_tokens=TOKENS, budget=60.0)
    made = []
    async for token in victim:
        made.append(token.token)
        if len(made) == BEFORE:
            act(thief, victim.request.session)
            await thief.mesh.link.flush()
    return made


@pytest.mark.parametrize("how", REFUSED)
async def test_who_claims_a_session_by_its_id_is_refused_and_the_client_has_all_its_tokens(
    local: LocalMesh, thief: Thief, how: str
) -> None:
    assert await _robbed(local, thief, REFUSED[how]) == undisturbed(0, TOKENS)
    await eventually(lambda: len(thief.documents) > 0, "the thief is answered")
    REFUSED[how](thief, UNKNOWN)
    await eventually(lambda: len(thief.documents) > 1, "the thief is answered again")
    first, second = thief.documents[:2]
    assert first["status"] == second["status"] == NOT_YOURS
    assert first["error"] == second["error"], "they tell whether there is such a session"


@pytest.mark.parametrize("how", SILENT)
async def test_who_speaks_as_a_node_or_the_server_of_a_session_by_its_id_changes_nothing(
    local: LocalMesh, thief: Thief, how: str
) -> None:
    await _its_own_answer(thief)
    before = len(thief.documents)
    assert await _robbed(local, thief, SILENT[how]) == undisturbed(0, TOKENS)
    tokens = [doc["token"] for doc in thief.documents[before:] if "token" in doc]
    assert not set(zip(tokens, tokens[1:], tokens[2:], strict=False)) & _threes()


def _threes() -> set[tuple[int, ...]]:
    """Three tokens in a row, as the victim has them."""
    whole = undisturbed(0, TOKENS)
    return set(zip(whole, whole[1:], whole[2:], strict=False))


@pytest.mark.parametrize("way", ["json", "its own name for it"])
async def test_a_client_of_plain_nats_is_given_a_key_and_goes_on_with_it_alone(
    local: LocalMesh, thief: Thief, way: str
) -> None:
    """The victim speaks plain NATS here."""
    heard: list[LinkMessage] = []
    inbox = local.mesh.link.expect(heard.append)
    subject = local.mesh.subjects.under("generate", model=MODEL)
    wish: dict[str, object] = {"prompt": prompt(0), "max_tokens": TOKENS, "seed": 1}
    wish |= {"session": "my-chat"} if way != "json" else {}
    local.mesh.link.publish(subject, json.dumps(wish).encode(), inbox)

    def told() -> list[dict[str, object]]:
        return [json.loads(bytes(message.data)) for message in heard if message.data]

    await eventually(lambda: len(told()) > BEFORE, "its first tokens")
    accepted = next(doc for doc in told() if "accepted" in doc)
    key, session = str(accepted["key"]), str(accepted["session"])
    thief.asks({"session": wish.get("session", session), "epoch": 7, "prompt": prompt(0)})
    thief.asks({"session": session, "epoch": 7, "prompt": prompt(0)})
    await eventually(lambda: len(thief.documents) == 2, "the thief is answered")
    assert {doc["status"] for doc in thief.documents} == {NOT_YOURS}
    assert key not in str(thief.documents)
    made = [int(str(doc["token"])) for doc in told() if "token" in doc]
    again = {"key": key, "epoch": 1, "head": accepted["node"], "made": made}
    local.mesh.link.publish(subject, json.dumps(wish | again).encode(), inbox)
    await eventually(lambda: any("finish" in doc for doc in told()), "the last token")
    tokens = {int(str(doc["seq"])): doc["token"] for doc in told() if "token" in doc}
    assert [tokens[at] for at in range(TOKENS)] == undisturbed(0, TOKENS)
    assert {doc["session"] for doc in told()} == {session}
    assert sum(key in str(doc) for doc in told()) <= 2, "it is told with `accepted` alone"
    local.mesh.link.forget(inbox)


async def test_another_ones_request_that_names_a_clients_inbox_brings_it_no_token(
    local: LocalMesh, thief: Thief
) -> None:
    """The thief has listened to find it: the server of this mesh has no users."""
    subject, inboxes = thief.mesh.subjects.under("generate", model=MODEL), list[str]()
    sid = thief.mesh.link.subscribe(subject, lambda message: inboxes.append(message.reply))
    await thief.mesh.link.flush()

    def aims(thief: Thief, session: str) -> None:
        wishes: list[dict[str, object]] = [{"max_tokens": 50}, {"prompt": []}, {"session": session}]
        for wish in wishes:
            data = json.dumps({"prompt": prompt(5)} | wish).encode()
            thief.mesh.link.publish(subject, data, inboxes[0])

    assert await _robbed(local, thief, aims) == undisturbed(0, TOKENS)
    thief.mesh.link.unsubscribe(sid)
