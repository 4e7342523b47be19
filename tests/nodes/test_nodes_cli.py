"""The command line: quick to answer, and its settings in their documented order."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import typer
from support.commands import product_commands
from typer.testing import CliRunner

import nodes.cli.infer
import nodes.cli.status
import nodes.cli.up
import nodes.process
import swarm
from nodes.access import HELP as ACCESS
from nodes.cli.infer import InferOptions
from nodes.cli.main import app
from nodes.cli.node import node as run
from nodes.cli.options import Target
from nodes.cli.up import UpOptions
from nodes.config import NodeConfig, settings_of_nodes
from nodes.connection.identity import own_id
from nodes.console import ago, delivery, duration
from swarm.errors import InvalidArgument

SETTINGS = settings_of_nodes()
HEAVY = ("onnxruntime", "onnx", "numpy", "nats", "msgpack", "uvloop")


@pytest.mark.parametrize("module", ["nodes.cli.main", "nodes.cli.node"])
def test_help_needs_none_of_the_heavy_imports(module: str) -> None:
    """`--help` answers at once: libraries are imported when a command runs."""
    code = f"import sys, {module}; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_the_version_is_told() -> None:
    told = CliRunner().invoke(app, ["--version"])
    assert (told.exit_code, told.stdout) == (0, f"swarm {swarm.__version__}\n")


def test_a_node_goes_without_the_library_of_the_command_line() -> None:
    """10 MB and a third of the start, for a process that prints its help once."""
    code = "import sys, nodes.cli.node, nodes.life.node; print('typer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == ["False"], done.stderr


def test_every_option_of_every_command_says_its_effect() -> None:
    silent = [
        f"{name} {parameter.name}"
        for name, command in product_commands().items()
        for parameter in command.params
        if parameter.name != "help" and not getattr(parameter, "help", None)
    ]
    assert silent == []
    assert [each.name for each in SETTINGS if len(each.help) < 10] == []


MOST_OPTIONS, MOST_OF_ALL_PROGRAMS = 102, 139


def test_a_person_sees_few_options_and_all_with_help_all() -> None:
    shown: set[str] = set()
    for words, command in product_commands().items():
        options = [each for each in command.params if each.param_type_name == "option"]
        shown |= {each.opts[-1] for each in options if not each.hidden}
        assert all(len(set(each.opts)) == len(each.opts) for each in options), words
        told = CliRunner().invoke(app, [*words.split(), "--help-all"], terminal_width=200)
        assert [each.opts for each in options if each.opts[-1] not in told.output] == []
    assert len(shown) <= MOST_OPTIONS
    shown |= {setting.flags[0] for setting in SETTINGS if not setting.is_tuning}
    assert len(shown) <= MOST_OF_ALL_PROGRAMS


def test_the_options_that_commands_share_mean_the_same_everywhere() -> None:
    shared = {"nats", "mesh", "json", "config", "sign_with", *ACCESS}
    meanings = {
        (parameter.name, parameter.help, tuple(parameter.opts))
        for command in product_commands().values()
        for parameter in command.params
        if parameter.name in shared
    }
    assert len(meanings) == len(shared)


def test_the_help_begins_with_the_commands_of_the_first_day() -> None:
    told = CliRunner().invoke(app, ["--help"]).output
    places = [told.index(f" {name} ") for name in ("demo", "up", "infer", "model")]
    assert places == sorted(places)


def test_a_command_that_does_not_exist_fails() -> None:
    assert CliRunner().invoke(app, ["serve"]).exit_code == 2


# --- settings ---------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[NodeConfig]:
    """The settings of each node that `swarm-node` would have run."""
    seen: list[NodeConfig] = []

    def run_node(config: NodeConfig, started: float) -> int:
        seen.append(config)
        return 0

    monkeypatch.setattr(nodes.process, "run_node", run_node)
    return seen


def node(arguments: list[str], env: dict[str, str] | None = None, code: int = 0) -> str:
    """The output of `swarm-node`, which ends with this code."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            ended = run(["--role", "shard-1", "--model", "digits", *arguments], env or {})
        except SystemExit as exit_:
            ended = int(exit_.code or 0)
    assert ended == code, output.getvalue()
    return output.getvalue()


def test_flags_win_over_the_environment_that_over_the_file_that_over_defaults(
    started: list[NodeConfig], tmp_path: Path
) -> None:
    file = tmp_path / "node.toml"
    file.write_text('threads = 2\nmax-batch = 12\nnats = "nats://file:1"\nmesh = "file"\n')
    config = ["--config", str(file)]
    environment = {"SWARM_THREADS": "3", "SWARM_MAX_BATCH": "13"}
    node([])
    node(config)
    node(config, environment)
    node([*config, "--threads", "4"], environment)
    assert [settings.threads for settings in started] == [1, 2, 3, 4]
    assert [settings.max_batch for settings in started] == [4, 12, 13, 13]
    assert [settings.mesh for settings in started] == ["default", "file", "file", "file"]
    assert started[-1].link.servers == ("nats://file:1",)


def test_settings_keep_their_units(started: list[NodeConfig]) -> None:
    """Milliseconds on the command line are seconds inside."""
    node(["--max-wait", "2.5", "--budget", "250"])
    assert (started[0].max_wait, started[0].budget) == (0.0025, 0.25)


def test_a_number_may_carry_its_unit(started: list[NodeConfig]) -> None:
    node(["--max-wait", "2.5ms", "--budget", "0.25s"])
    assert (started[0].max_wait, started[0].budget) == (0.0025, 0.25)


def test_several_servers_are_tried_in_turn(
    started: list[NodeConfig],
) -> None:
    node(["--nats", "nats://a:1,nats://b:2"])
    assert started[0].link.servers == ("nats://a:1", "nats://b:2")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("thread = 2\n", "unknown settings thread"),
        ("threads = \n", "Invalid value"),
        ("threads = 'many'\n", "--threads"),
        ("threads = true\n", "--threads"),
        ("threads = 1.5\n", "--threads"),
        ('nats = ["nats://a:1"]\n', "--nats"),
        ("standby = 1\n", "--standby"),
    ],
)
def test_a_bad_file_of_settings_is_refused_and_named(
    started: list[NodeConfig], tmp_path: Path, content: str, says: str
) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(content)
    assert says in node(["--config", str(file)], code=2)
    assert "absent.toml" in node(["--config", str(tmp_path / "absent.toml")], code=2)
    assert started == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--role", "boss"],
        ["--role", "shard-0"],
        ["--role", "shard-"],
        ["--role", "shard-x"],
        ["--mesh", "a.b"],
        ["--mesh", ""],
        ["--model", "digits.>"],
        ["--model", "digits@1.2"],
        ["--model", "@1"],
        ["--threads", "0"],
        ["--credit", "257"],
        ["--on-full", "explode"],
        ["--storage", "paper"],
        ["--replicas", "6"],
        ["--lanes", "everywhere"],
    ],
    ids=" ".join,
)
def test_a_wrong_setting_ends_a_node_with_code_2(
    started: list[NodeConfig], arguments: list[str]
) -> None:
    output = node(arguments, code=2)
    assert "Traceback" not in output
    assert started == []


ODD = "cam.front", "a b", "a>", "*", "a/b", "é", "x" * 129, ".", "a\n", "-", "📷"


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize(
    "form",
    [
        "--node {}",
        "--mesh {}",
        "--model {}",
        "--model digits@{}",
        "--role gateway --site {}",
        "--role edge --sink {}",
        "--domain {}",
    ],
)
def test_an_odd_name_is_one_line_and_code_2_in_every_setting_that_names(
    started: list[NodeConfig], form: str, name: str
) -> None:
    if name == "-":
        name = "-."
    flags = [word.format(name) for word in form.split(" ")]
    output = node(flags, code=2)
    assert "Traceback" not in output
    assert started == []


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--metrics-port", "70000"], "--metrics-port '70000' is no place to listen"),
        (["--metrics-port", "127.0.0.1:1x"], "is no place to listen"),
        (["--node", "x" * 65], "64 characters at most"),
    ],
)
def test_a_place_or_an_id_that_cannot_be_is_a_wrong_setting(
    started: list[NodeConfig], flags: list[str], says: str
) -> None:
    assert says in node(flags, code=2)
    assert started == []


def test_a_file_of_settings_may_begin_with_a_byte_order_mark(
    started: list[NodeConfig], tmp_path: Path
) -> None:
    file = tmp_path / "node.toml"
    file.write_bytes(b"\xef\xbb\xbfthreads = 3\n")
    node(["--config", str(file)])
    assert started[0].threads == 3


@pytest.mark.parametrize(
    ("value", "says"),
    [("", False), ("0", False), ("off", False), ("1", True), ("True", True), ("yes", True)],
)
def test_a_switch_is_read_from_the_environment(
    started: list[NodeConfig], value: str, says: bool
) -> None:
    node([], {"SWARM_STANDBY": value})
    node(["--no-standby"], {"SWARM_STANDBY": value})
    assert [settings.standby for settings in started] == [says, False]


def test_shared_memory_is_used_unless_it_is_switched_off_anywhere(
    started: list[NodeConfig], tmp_path: Path
) -> None:
    file = tmp_path / "node.toml"
    file.write_text("shm = false\n")
    node([])
    node(["--no-shm"])
    node(["--stored"])
    node([], {"SWARM_STORED": "1"})
    node(["--stored", "--shm"])
    node([], {"SWARM_SHM": "0"})
    node(["--config", str(file)])
    node(["--config", str(file), "--shm"], {"SWARM_SHM": "0"})
    assert [settings.shares_memory for settings in started] == [True, *[False] * 6, True]


@pytest.mark.parametrize(
    ("name", "value"),
    [("STANDBY", "maybe"), ("THREADS", "0"), ("THREADS", "two"), ("RATE", "nan"), ("QUOTA", "-1")],
)
def test_a_wrong_environment_is_refused_and_named(
    started: list[NodeConfig], name: str, value: str
) -> None:
    assert f"--{name.lower()}" in node([], {f"SWARM_{name}": value}, code=2)
    assert started == []


def test_a_node_is_told_all_by_its_environment(
    started: list[NodeConfig],
) -> None:
    assert run([], {"SWARM_ROLE": "gateway", "SWARM_NODE_ID": "g1"}) == 0
    assert (started[0].role, started[0].node) == ("gateway", "g1")
    with pytest.raises(SystemExit) as ended:
        run([], {})
    assert ended.value.code == 2


def test_a_nodes_help_names_the_settings_that_a_person_sets() -> None:
    output = node(["--help"])
    shown = [each for each in SETTINGS if not each.is_tuning]
    assert len(shown) <= 58
    for each in SETTINGS:
        assert (each.variable in output) is (each in shown)
        assert each.is_tuning or all(spelling in output for spelling in each.flags)


def test_flags_are_not_guessed_from_their_beginnings(
    started: list[NodeConfig],
) -> None:
    assert "--thread" in node(["--thread", "2"], code=2)


def test_the_clients_take_server_and_mesh_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, str]] = []

    def status(target: Target) -> int:
        seen.append((target.nats, target.mesh))
        return 0

    monkeypatch.setattr(nodes.cli.status, "status", status)
    env = {"SWARM_NATS": "nats://env:1", "SWARM_MESH": "env"}
    runner = CliRunner()
    runner.invoke(app, ["status"], env={"SWARM_NATS": None, "SWARM_MESH": None})
    runner.invoke(app, ["status"], env=env)
    runner.invoke(app, ["status", "--nats", "nats://flag:1"], env=env)
    assert seen == [
        ("nats://127.0.0.1:4222", "default"),
        ("nats://env:1", "env"),
        ("nats://flag:1", "env"),
    ]


def test_up_and_infer_take_defaults_from_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Any] = []

    def up(options: UpOptions) -> int:
        seen.append((options.stages, options.fallback))
        return 0

    def infer(options: InferOptions, model: Annotated[str, typer.Argument()] = "") -> int:
        seen.append((options.budget, options.repeat))
        return 0

    monkeypatch.setattr(nodes.cli.up, "up", up)
    monkeypatch.setattr(nodes.cli.infer, "infer", infer)
    file = tmp_path / "up.toml"
    file.write_text("stages = 5\nfallback = false\n")
    runner = CliRunner()
    words = ["up", "--model", "m.onnx"]
    assert runner.invoke(app, words).exit_code == 0
    assert runner.invoke(app, [*words, "--config", str(file)]).exit_code == 0
    assert runner.invoke(app, [*words, "--config", str(file), "--stages", "2"]).exit_code == 0
    assert seen == [(3, True), (5, False), (2, False)]
    file.write_text('budget = "40ms"\nrepeat = 7\n')
    words = ["infer", "digits", "--input", "x.npz", "--config", str(file)]
    assert runner.invoke(app, words).exit_code == 0
    assert seen[-1] == ("40ms", 7)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("50ms", 0.05),
        ("2s", 2.0),
        (".5s", 0.5),
        ("1m", 60.0),
        ("250us", 250e-6),
        (" 3 s ", 3.0),
        ("0", 0.0),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "soon", "-1s", "1h", "1e3", "5 5", "0x10", "nan", "1,5s", "0.5", "250", "00"]
)
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidArgument, match="write 50ms, 2s or 1m"):
        duration(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("90", 90.0), ("10m", 600.0), ("2h", 7200.0), ("1d", 86400.0)],
)
def test_how_long_ago_takes_all_units(text: str, seconds: float) -> None:
    assert ago(text) == pytest.approx(seconds)


def test_fast_mode_is_called_fast_and_answers_to_its_old_name() -> None:
    assert delivery("fast") == delivery("core") != delivery("durable")
    with pytest.raises(InvalidArgument, match="durable or fast"):
        delivery("slow")


@pytest.mark.parametrize(
    "line",
    [
        ["profile", "digits", "--for", "2s", "--json"],
        ["teach", "digits", "--json", "--nats", "nats://x"],
        ["no-such-command", "--json"],
    ],
)
def test_a_wrong_command_line_is_a_json_error_for_programs(line: list[str]) -> None:
    told = CliRunner().invoke(app, line)
    assert told.exit_code == 2
    document = json.loads(told.stdout)
    assert document["status"] == "INVALID_ARGUMENT"
    assert document["error"]


def test_a_nodes_id_that_is_not_its_users_is_refused_with_those_that_are() -> None:
    link = SimpleNamespace(connects_as="s2", credentials="s2.creds", nkey=None)
    config: Any = SimpleNamespace(node="other", role="shard-2", link=link)
    with pytest.raises(InvalidArgument) as refused:
        own_id(config)
    assert str(refused.value).startswith("--node other: these credentials are those of user")


def test_an_error_of_a_command_without_a_coroutine_is_one_line(tmp_path: Path) -> None:
    line = ["compose", "share", str(tmp_path / "none.onnx"), "-o", str(tmp_path / "out"), "--json"]
    told = CliRunner().invoke(app, line)
    assert told.exit_code == 1
    assert json.loads(told.stdout)["status"] == "INVALID_ARGUMENT"
