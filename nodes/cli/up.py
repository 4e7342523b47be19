"""`swarm up`: a local mesh for any ONNX file, in the foreground."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from nodes.cli.command import flags_of, option, options_of, seldom
from nodes.cli.model_split import Splitting, check_source, model_name, show
from nodes.cli.options import VERSION, OwnServers, Target
from nodes.cli.with_mesh import connect
from nodes.console import err, out, print_json, unless
from nodes.event_loop import stop_on_signals
from nodes.feature import Given
from nodes.features import features
from nodes.logs import LogForm, set_up_logging
from nodes.progress import progress
from nodes.up.companion import Companion
from nodes.up.embedded_server import MAX_PAYLOAD
from nodes.up.how_to_ask import how_to_ask
from nodes.up.mesh import LocalMesh, check_embedded, local_mesh
from nodes.up.splitting import split_into
from nodes.up.version_choice import AUTO, FIRST, KnownVersions, chosen, known_versions
from shards.manifest import Manifest, read_dir, rename_version
from swarm.errors import BadKey, InvalidArgument
from swarm.scratch import Scratch
from swarm.security.identity import Identity
from swarm.security.signed_entries import Verifier
from swarm.security.trusted_keys import TrustedKeys, own_key, own_trust_file

OPEN = (
    "Open on loopback: every process of this machine may ask it, and change it; --secure closes it."
)
READY_WITHIN = 30.0  # seconds, for each model
ONE_STAGE: dict[str, Any] = {"name": "", "stages": 1, "edge_layers": 0, "cuts": ""}
CLOSED = "Closed: TLS, and credentials for each process; the keys end with this command."


@dataclass(frozen=True, kw_only=True)
class UpOptions(Splitting):
    """Of `swarm up`."""

    model: list[str] = option(
        ...,
        "An ONNX file, a language model's folder, or `toy`, which comes with this package. Several "
        "times for several models, each with nodes of its own.",
    )
    version: Annotated[str, VERSION] = option(
        "auto",
        "Version of the model; in the mesh it never changes. auto: the mesh's own version of the "
        "same file and options, else the next number.",
    )
    port: int | None = option(
        None, "Port of the embedded server; a free one when not given.", min=0, max=65535
    )
    replicas: int = option(1, "Nodes to start for each shard.", min=1, max=16)
    fallback: bool = option(True, "Start a fallback node, which takes over any shard that dies.")
    standby_nodes: int = seldom(
        0, "Nodes that take the stage that lacks nodes most.", min=0, max=16
    )
    threads: int = seldom(1, "Threads with which each stage computes.", min=1)
    servers: int = option(1, "Embedded servers to start; several are one cluster.", min=1, max=5)
    secure: bool = option(
        False, "With TLS, and with credentials of its own for each process.", "--secure/--no-secure"
    )
    stored: bool = option(
        False, "Every hop goes through JetStream as bytes, as it does between hosts."
    )


async def up(options: UpOptions, target: OwnServers, given: Given) -> int:
    """Split an ONNX file and run it as a mesh on this machine, until Ctrl-C.

    Without --nats it starts a server of its own."""
    set_up_logging(LogForm())
    split = _one_by_one(options)
    companions = [companion for each in features() for companion in each.companions(given)]
    if len(split) > 1 and any(each.serves for each in companions):
        raise InvalidArgument("--auto shares the stages of one model: give one --model")
    check_embedded(target.nats, options.secure, options.servers, options.port)
    stop = stop_on_signals()
    with Scratch("up") as directory:

        async def split_whole(model: str) -> Path:
            whole = replace(options, **ONE_STAGE, model=[model])
            path = directory / f"whole-{model_name(model)}"
            await _split(whole, target, given, path)
            return path

        folders = {name: directory / f"model-{name}" for name in split}
        for name, each in split.items():
            with progress(f"splitting {each.model[0]}", silent=target.json):
                if not await unless(stop, _split(each, target, given, folders[name])):
                    return 130
        for companion in companions:
            if not await unless(stop, companion.split(split_whole)):
                return 130
        return await _serve(options, target, list(folders.values()), companions, stop)


def _one_by_one(options: UpOptions) -> dict[str, UpOptions]:
    """The options of each model alone, by its name. A lighter model among them has none itself, and
    is the first, since a version is refused before its lighter model is there. Raises
    `InvalidArgument`."""
    if len(options.model) == 1:
        return {options.name or model_name(options.model[0]): options}
    for name in ("name", "cuts"):
        if getattr(options, name):
            raise InvalidArgument(f"--{name} is for one model: there are {len(options.model)}")
    lighter = options.lighter_model.partition("@")[0]
    found: dict[str, UpOptions] = {}
    for model in options.model:
        if (name := model_name(model)) in found:
            raise InvalidArgument(f"--model {model}: another file makes the name {name!r} already")
        found[name] = replace(options, model=[model])
        if name == lighter:
            found[name] = replace(found[name], lighter_model="", degrades=False)
    return dict(sorted(found.items(), key=lambda each: each[0] != lighter))


async def _serve(
    options: UpOptions,
    target: Target,
    folders: Sequence[Path],
    companions: Sequence[Companion],
    stop: asyncio.Event,
) -> int:
    manifests = [read_dir(folder)[0] for folder in folders]
    largest = max(sum(s.nbytes for s in shard.sends) for each in manifests for shard in each.shards)
    # Room for a batch axis that requests may fill, up to the server's hard limit.
    payload = min(64 << 20, max(MAX_PAYLOAD, 2 * largest + (1 << 20)))
    async with local_mesh(
        access=target.access,
        url=target.nats,
        name=target.mesh,
        max_payload=payload,
        servers=options.servers,
        port=options.port or 0,
        secure=options.secure,
        shm=not options.stored,
        signer=_own_signer(),
    ) as local:
        # The files stay on the disk: the model is put back from there if the server loses it.
        for folder, manifest in zip(folders, manifests, strict=True):
            size = sum((folder / name).stat().st_size for name in manifest.files())
            with progress(f"pushing {manifest.model}", total=size, silent=target.json) as sent:
                await local.keep(folder, sent)
        flags, last = ["--threads", str(options.threads)], manifests[-1]
        for each in companions:
            flags += await each.prepare(local)
        for manifest in manifests:
            _start(local, manifest, options, flags, any(each.serves for each in companions))
        for each in companions:
            each.start(local, last.model, flags)
        asked = next((made for each in companions if (made := each.asked()) is not None), last)
        if not await unless(stop, local.ready(READY_WITHIN * len(manifests))):
            return 130
        for each in companions:
            if not await unless(stop, each.opened(local, asked.model)):
                return 130
        _announce(local, asked, manifests, target.json, companions)
        await stop.wait()
        if not target.json:
            err.print("stopping: nodes drain …")
    return 0


def _start(
    local: LocalMesh, manifest: Manifest, options: UpOptions, flags: Sequence[str], served: bool
) -> None:
    """Start the nodes of one model. served: other ones serve its stages."""
    name = manifest.model
    for stage in () if served else range(1, manifest.stages + 1):
        for _ in range(options.replicas):
            local.start(f"shard-{stage}", name, *flags)
    if options.fallback:
        local.start("fallback", name, *flags)
    for _ in range(options.standby_nodes):
        local.start("standby", name, *flags)


def _say(text: str) -> None:
    err.print(text, markup=False, highlight=False, soft_wrap=True)


def _own_signer() -> Identity | None:
    """The key that `swarm model push` signs with, so that versions can be pushed beside this
    command; None, said to people, where this user cannot have one."""
    try:
        return own_key()
    except BadKey as error:
        text = f"a key of this run signs, so no version can be pushed beside it: {error}"
        err.print(text, markup=False, soft_wrap=True)
        return None


async def _split(options: UpOptions, target: Target, given: Given, folder: Path) -> None:
    """Split the model into a new folder, as the version that the mesh has of it, or will have.
    Raises `SwarmError`."""
    (model,) = options.model
    check_source(model)
    name, known = options.name or model_name(model), KnownVersions()
    if target.nats:  # else the mesh is new, and has nothing
        async with connect(
            target, verifier=Verifier(TrustedKeys.of(str(own_trust_file())))
        ) as mesh:
            known = await known_versions(mesh, name)
    like = await asyncio.to_thread(known.write, folder.with_name(f"{folder.name}-known"))
    version = FIRST if options.version == AUTO else options.version
    # Whichever server is used, all nodes are processes of this host.
    arguments = ["--one-host", *flags_of(replace(options, name=name, version=version), Splitting)]
    for kind in options_of("model split"):
        if (more := given.of(kind)) is not None:
            arguments += flags_of(more, kind)
    if like:
        arguments += ["--like", ",".join(str(each) for each in like)]
    await split_into(folder, model, arguments)
    choice = chosen(options.version, name, read_dir(folder)[0].to_json(), known)
    await asyncio.to_thread(rename_version, folder, choice.version)
    if choice.why:
        _say(choice.why)


def _announce(
    local: LocalMesh,
    manifest: Manifest,
    all_: Sequence[Manifest],
    as_json: bool,
    companions: Sequence[Companion],
) -> None:
    """manifest: that people ask. all_: of the models that were given."""
    names = list(dict.fromkeys([manifest.model, *(each.model for each in all_)]))
    nodes = []
    for process in local.supervisor.nodes:
        status = local.status_of(process)
        nodes.append(
            {
                "node": status["node"] if status else "",
                "role": process.role,
                "pid": process.pid,
            }
        )
    secured: dict[str, Any] = {"secure": local.rights is not None}
    if as_json and local.rights is not None:
        client = local.rights.access("client", "client", *names)
        secured |= {"credentials": client.credentials, "tls_ca": client.tls_ca}
        secured |= {
            "auth": str(local.rights.authority.directory),
            "pid_file": local.pid_files,
        }
    if as_json:
        for companion in companions:
            secured |= companion.document(local)
        print_json(
            {
                "event": "ready",
                "nats": local.url,
                "mesh": local.name,
                "model": manifest.model,
                "version": manifest.version,
                "stages": manifest.stages,
                "models": [f"{each.model}@{each.version}" for each in all_],
                "nodes": nodes,
                "servers": [{"url": s.url, "pid": s.pid} for s in local.servers],
            }
            | secured
        )
        return
    for each in all_:
        show(each, False)
    rights = local.rights
    if rights is None:
        how = how_to_ask(manifest, local.url, local.name)
        open_or_not = OPEN if local.server is not None else ""
    else:
        how = how_to_ask(
            manifest,
            local.url,
            local.name,
            asks=rights.access("client", "client", *names),
            reads=rights.access("requester", "requester", *names),
        )
        open_or_not = CLOSED
    out.print(f"[bold green]ready[/] at {local.url}, mesh {local.name!r}", soft_wrap=True)
    if open_or_not:
        out.print(open_or_not, markup=False, soft_wrap=True)
    if len(local.servers) > 1:
        out.print("Try what the loss of a server costs (it starts again by itself):", style="bold")
        for server in local.servers:
            out.print(f"kill -KILL {server.pid}   # {server.url}", highlight=False)
    lines = [
        ("Ask it from the shell", how.shell),
        ("from Python", how.python),
        ("from any NATS client", how.nats),
        *(line for each in companions for line in each.lines(local, manifest)),
    ]
    if rights is not None:
        lines.append(("New certificates while it runs", rights.rotation(local.pid_files)))
    for title, command in lines:
        out.print(f"{title}:", style="bold")
        # One line each, whatever the terminal's width: they are to be pasted.
        out.print(command, markup=False, highlight=False, soft_wrap=True)
