from __future__ import annotations

import os
import subprocess
from pathlib import Path

import click
import pytest

import holdfast
from holdfast.cli.program import VERBS, program
from holdfast.cli.verbs import read, status
from holdfast.errors import NotFound
from tests.cli.conftest import MAIN, PATIENCE, Run, Spawn, drain, objects

pytestmark = pytest.mark.disk

BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "%s":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
"""


def test_version_prints_the_version_alone(run: Run) -> None:
    """--version prints the version and nothing else."""
    assert run("--version").stdout == f"holdfast {holdfast.__version__}\n"


def test_help_lists_the_verbs(run: Run) -> None:
    """-h, --help and help explain the program and name every verb."""
    for arguments in (["-h"], ["--help"], ["help"]):
        result = run(*arguments)
        assert result.exit_code == 0
        assert all(f"  {verb} " in result.stdout for verb in (*VERBS, "help"))


@pytest.mark.parametrize("verb", [*VERBS, "help"])
def test_help_explains_a_verb(run: Run, verb: str) -> None:
    """help VERB prints the same as VERB -h."""
    assert run("help", verb).stdout == run(verb, "-h").stdout
    assert f"Usage: program {verb} " in run("help", verb).stdout


def test_the_list_of_verbs_imports_none_of_them(spawn: Spawn) -> None:
    """Help comes at once: neither a verb nor Arrow is loaded for it. What it says of a verb is what that says first."""
    code = "import sys, atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); " + MAIN
    process = spawn("--help", code=code)
    _, loaded = process.communicate(timeout=PATIENCE)
    modules = loaded.decode().split()
    assert "holdfast.cli.program" in modules
    assert not [name for name in modules if name.startswith(("pyarrow", "apsw", "holdfast.cli.verbs", "holdfast.log."))]
    context = click.Context(program)
    for verb, summary in VERBS.items():
        assert program.get_command(context, verb).get_short_help_str(1_000) == summary


def test_status_loads_no_arrow(spawn: Spawn, sealed_log: Path) -> None:
    """Looking at a log is quick: neither its files nor tables are read for it."""
    code = "import sys, atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); " + MAIN
    shown, loaded = spawn("status", sealed_log, code=code).communicate(timeout=PATIENCE)
    assert b"segments" in shown
    assert "pyarrow" not in loaded.decode().split()


def test_nothing_at_all_is_wrong_usage(run: Run) -> None:
    """Without a verb the help goes to stderr, with exit code 2."""
    result = run()
    assert (result.exit_code, result.stdout, "append" in result.stderr) == (2, "", True)


@pytest.mark.parametrize("arguments", [["stats", "log"], ["help", "stats"]])
def test_a_mistyped_verb_is_answered_with_the_right_one(run: Run, arguments: list[str]) -> None:
    """An unknown verb exits with 2 and names the one that was probably meant."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert "error: no such verb 'stats', did you mean 'status'?" in result.stderr


def test_a_verb_like_no_other_gets_no_suggestion(run: Run) -> None:
    """Where nothing is close, nothing is suggested."""
    result = run("xyz")
    assert (result.exit_code, "did you mean" in result.stderr) == (2, False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["consumer", "xyz"], "there are: forget, list"), (["read", "http://127.0.0.1:1", "t"], "holdfast.connect(")],
)
def test_what_is_there_instead_is_said(run: Run, arguments: list[str], said: str) -> None:
    """An action that is not there, and a server's address in the place of a store's."""
    result = run(*arguments)
    assert (result.exit_code, said in result.stderr) == (2, True)


def test_an_unknown_option_is_wrong_usage(run: Run) -> None:
    """An option that does not exist exits with 2, for the program and for a verb."""
    assert run("--nothing").exit_code == 2
    assert run("status", "log", "--nothing").exit_code == 2


def test_errors_have_a_hint_and_no_traceback(run: Run) -> None:
    """What holdfast raises becomes two lines on stderr."""
    result = run("status", "nowhere")
    assert (result.exit_code, result.stdout) == (1, "")
    first, second = result.stderr.splitlines()
    assert first.startswith("error: there is no log")
    assert second.startswith("hint: ")


def test_errors_in_json(run: Run) -> None:
    """With --json an error is one object on stderr: kind, message and hint."""
    for arguments, kind in (
        (["status", "nowhere"], "NotFound"),
        (["append", "log", "no/name", "x"], "Invalid"),
        (["read", "log"], "Usage"),
        (["read", "log", "orders", "--raw"], "Usage"),
    ):
        result = run(*arguments, "--json")
        (error,) = objects(result.stderr)
        assert result.stdout == ""
        assert (set(error), error["error"]) == ({"error", "message", "hint"}, kind)
    assert not Path("log").exists()


def test_debug_shows_where(run: Run) -> None:
    """HOLDFAST_DEBUG=1 shows the traceback above the error."""
    result = run("status", "nowhere", HOLDFAST_DEBUG="1")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "error: there is no log" in result.stderr


def test_a_defect_is_named_without_its_text(run: Run, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that nobody foresaw is reported by its type alone: its text might hold a payload."""

    def fail(*_: object, **__: object) -> None:
        raise ValueError("secret-payload")

    monkeypatch.setattr(status.InspectedDatabase, "examine", fail)
    result = run("status", log)
    assert result.exit_code == 1
    assert "error: unexpected ValueError" in result.stderr
    assert "secret" not in result.stderr


def test_messages_cannot_steer_a_terminal(run: Run, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not printable in an error is escaped."""

    def fail(*_: object, **__: object) -> None:
        raise NotFound("there is no \x1b[31m", hint="\x07")

    monkeypatch.setattr(read, "open_log", fail)
    assert run("read", log, "orders").stderr == "error: there is no \\x1b[31m\nhint: \\x07\n"


def test_settings_are_honoured(run: Run, tmp_path: Path) -> None:
    """Settings come from holdfast.toml and the environment; a wrong one is refused."""
    (tmp_path / "holdfast.toml").write_text("[journal]\npayload_bytes_max = 3\n")
    assert run("append", "log", "orders", "1234").exit_code == 1
    assert run("append", "log", "orders", "1234", HOLDFAST_JOURNAL__PAYLOAD_BYTES_MAX="4").exit_code == 0
    assert run("read", "log", "orders", HOLDFAST_JOURNAL__NOTHING="4").exit_code == 1


@pytest.mark.parametrize("module", ["click", "rich"])
def test_a_missing_extra_is_one_line(spawn: Spawn, module: str) -> None:
    """Without click or rich the command says in one line what to install, and exits with 2."""
    process = spawn("status", "log", code=BLOCKED % module + MAIN)
    output, words = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (2, b"")
    assert words.decode().splitlines() == ["error: the command line needs an extra: pip install 'holdfast-log[cli]'"]


def test_the_library_does_without_the_extra(spawn: Spawn) -> None:
    """Without click and rich the library works."""
    work = "import holdfast\nwith holdfast.open('log') as log: log.topic('orders').append(b'x')"
    assert spawn(code=BLOCKED % "click" + BLOCKED % "rich" + work).wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["status", "log"], 0),
        (["status", "nowhere"], 1),
        (["status"], 2),
        (["--version"], 0),
        (["read", "log", "orders", "--limit", "1"], 0),
    ],
)
def test_exit_codes_of_the_process(spawn: Spawn, log: Path, arguments: list[str], code: int) -> None:
    """The process itself exits with the documented codes."""
    process = spawn(*arguments)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == code


def test_a_full_disk_behind_stdout_is_an_error(spawn: Spawn, log: Path) -> None:
    """When stdout cannot take the data, the exit code is 1 and it is said."""
    with Path("/dev/full").open("wb") as full:
        process = spawn("read", log, "orders", stdout=full)
        _, words = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert b"error: No space left on device" in words


def on_terminal(spawn: Spawn, *arguments: object, **env: str) -> str:
    """What a verb prints on a terminal of 200 columns."""
    terminal, theirs = os.openpty()
    environment = {**os.environ, "COLUMNS": "200", "TERM": "xterm-256color", **env}
    process = spawn(*arguments, stdout=theirs, stderr=subprocess.PIPE, env=environment)
    os.close(theirs)
    shown = drain(terminal)
    process.wait(PATIENCE)
    return shown.decode()


def test_a_terminal_gets_a_table(spawn: Spawn, log: Path) -> None:
    """On a terminal that is wide enough the table is drawn; on a narrow one it is plain text."""
    assert "┃" in on_terminal(spawn, "status", log)
    assert "┃" not in on_terminal(spawn, "status", log, COLUMNS="40")


def test_no_color_is_honoured(spawn: Spawn, log: Path) -> None:
    """A bad check is red on a terminal, and not with NO_COLOR."""
    from tests.cli.conftest import tamper

    tamper(log, "UPDATE epochs SET pid = 1")
    assert "\x1b[1;31m" in on_terminal(spawn, "inspect", log)
    plain = on_terminal(spawn, "inspect", log, NO_COLOR="1")
    assert "BAD" in plain
    assert "31m" not in plain
