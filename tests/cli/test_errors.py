"""Every error of every verb: one JSON object of the documented shape, kind and exit code, last on stderr."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import holdfast
from holdfast import errors
from holdfast.cli.output import kind_of
from holdfast.cli.program import VERBS, program
from holdfast.errors import Corrupt, HoldfastError
from tests.cli.conftest import Run, segment_files, tamper

pytestmark = pytest.mark.disk

KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type)} | {"Usage", "OSError", "Defect"}
CODES = {"Usage": 2, "Corrupt": 3}

ARGUMENTS: dict[str, list[str]] = {
    "append": ["DIR", "orders", "x"],
    "read": ["DIR", "orders"],
    "tail": ["DIR", "orders"],
    "topics": ["DIR"],
    "status": ["DIR"],
    "seal": ["DIR"],
    "ship": ["DIR"],
    "retain": ["DIR"],
    "reconcile": ["DIR"],
    "rebuild": ["DIR", "--yes"],
    "restore": ["DIR", "new", "--yes"],
    "compact": ["DIR"],
    "publish": ["DIR"],
    "unpublish": ["DIR"],
    "inspect": ["DIR"],
    "keys": ["list", "DIR"],
    "consumer": ["list", "DIR"],
    "execution": ["list", "DIR"],
    "channel": ["list", "DIR"],
    "spark": ["read", "DIR", "orders"],
    "metrics": ["DIR"],
    "serve": ["DIR", "--listen", "127.0.0.1:0"],
    "token": ["list", "DIR"],
    "producer": ["list", "DIR"],
    "config": ["show"],
}
"""A call of each verb that would work if DIR were a log."""


def reported(run: Run, *arguments: object) -> dict[str, str]:
    """The error of a call with --json, which is as documented."""
    result = run(*arguments, "--json")
    error: dict[str, str] = json.loads(result.stderr.splitlines()[-1])
    assert set(error) == {"error", "message", "hint"}
    assert error["error"] in KINDS
    assert error["error"] != "Defect", result.stderr
    assert result.exit_code == CODES.get(error["error"], 1)
    assert error["hint"]
    for line in result.stdout.splitlines():
        json.loads(line)
    return error


def test_the_table_has_every_verb() -> None:
    """A verb that is added is walked over, too."""
    assert set(ARGUMENTS) == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_option(run: Run, verb: str) -> None:
    """Wrong usage is reported as such."""
    assert reported(run, verb, *ARGUMENTS[verb], "--nothing")["error"] == "Usage"


@pytest.mark.parametrize("verb", VERBS)
def test_a_call_without_arguments_is_wrong_usage(run: Run, verb: str) -> None:
    """So is a call without arguments."""
    assert reported(run, verb)["error"] == "Usage"


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "config"])
@pytest.mark.parametrize("place", ["nowhere", "file", "full", "directory"])
def test_a_wrong_place(run: Run, tmp_path: Path, verb: str, place: str) -> None:
    """A place that is not there, a file, a directory of somebody else: refused, and nothing of ours is made there."""
    (tmp_path / "file").write_text("hello")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photo").touch()
    (tmp_path / "directory").mkdir()
    if (verb in {"append", "serve"} and place in {"nowhere", "directory"}) or (verb, place) == ("inspect", "file"):
        pytest.skip("a log is created there, or a file is looked at")
    arguments = [str(tmp_path / place) if word == "DIR" else word for word in ARGUMENTS[verb]]
    assert reported(run, verb, *arguments)["error"] in {"NotFound", "Invalid", "Usage"}
    assert not (tmp_path / "nowhere").exists()
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["photo"]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in {"restore", "spark", "config"}])
def test_a_setting_that_is_wrong(run: Run, log: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """Settings are checked by every verb that takes any."""
    monkeypatch.setenv("HOLDFAST_JOURNAL__NOTHING", "1")
    arguments = [str(log) if word == "DIR" else word for word in ARGUMENTS[verb]]
    if verb != "rebuild":
        assert reported(run, verb, *arguments)["error"] == "Invalid"


@pytest.mark.parametrize("verb", ["append", "seal", "retain", "reconcile", "consumer", "channel"])
def test_a_damaged_log(run: Run, log: Path, verb: str) -> None:
    """Damage is Corrupt, with exit code 3."""
    tamper(log, "UPDATE heads SET next_offset = 5")
    arguments = [str(log) if word == "DIR" else word for word in ARGUMENTS[verb]]
    result = run(verb, *arguments, "--json")
    assert result.exit_code == 3
    kinds = [json.loads(line)["error"] for line in result.stderr.splitlines() if line.startswith("{")]
    assert kinds
    assert set(kinds) <= KINDS


def _kinds(root: type[HoldfastError]) -> list[type[HoldfastError]]:
    return [root, *(found for kind in root.__subclasses__() for found in _kinds(kind))]


def test_every_kind_that_can_be_raised_is_reported_by_a_documented_name() -> None:
    """Stages raise narrower kinds of their own; what is reported is the kind that the table has."""
    from holdfast.shipping.ownership import earlier_epochs  # noqa: F401 - they have some
    from holdfast.store import port  # noqa: F401

    narrower = [kind for kind in _kinds(HoldfastError) if kind.__module__.startswith("holdfast.")]
    assert len(narrower) > len(KINDS)
    for kind in narrower:
        if kind is not HoldfastError:
            assert kind_of(kind.__new__(kind)) in KINDS


def test_json_by_format_has_errors_in_json(run: Run, log: Path) -> None:
    """`--format json` is the same as `--json`, for errors as well."""
    for options in (["--format", "json"], ["--format=json"]):
        assert json.loads(run("read", log, "nothing", *options).stderr)["error"] == "NotFound"


@pytest.mark.parametrize(
    "arguments",
    [
        ["read", "DIR", "ordres"],
        ["tail", "DIR", "Orders"],
        ["seal", "DIR", "order"],
        ["inspect", "DIR", "--topic", "oders"],
    ],
)
def test_a_mistyped_topic_is_answered_with_the_right_one(run: Run, log: Path, arguments: list[str]) -> None:
    """A mistyped name of a topic comes with the one that was probably meant."""
    result = run(*[str(log) if word == "DIR" else word for word in arguments])
    assert result.exit_code == 1
    assert "did you mean 'orders'?" in result.stderr
    assert "there are: idle, orders" in result.stderr


def test_the_damage_hint_finds_the_damage(run: Run, sealed_log: Path) -> None:
    """What the hint says to run, finds what was reported: bytes that changed inside of a segment need --deep."""
    path = segment_files(sealed_log)[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    reported = run("read", sealed_log, "orders")
    assert reported.exit_code == 3
    (command,) = re.findall(r"`holdfast (reconcile DIR[^`]*)`", reported.stderr)
    found = run(*command.replace("DIR", str(sealed_log)).split())
    assert (found.exit_code, "content_mismatch" in found.stdout) == (3, True)


@pytest.mark.parametrize("columns", [80, 40])
def test_summaries_are_whole(run: Run, columns: int) -> None:
    """The list of verbs has whole sentences, however narrow the terminal is."""
    shown = " ".join(run("--help", COLUMNS=str(columns)).stdout.split())
    context = click.Context(program)
    for verb in VERBS:
        command = program.get_command(context, verb)
        assert command is not None
        summary = " ".join((command.help or "").split("\n\n")[0].split())
        assert summary.removesuffix(".") in shown
    assert "..." not in shown.partition("Commands:")[2]


def test_it_runs_as_a_module(log: Path) -> None:
    """`python -m holdfast` is the same program."""
    command = [sys.executable, "-m", "holdfast"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"holdfast {holdfast.__version__}\n"
    wrong = subprocess.run([*command, "stats"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, "Usage: holdfast " in wrong.stderr) == (2, True)


def test_corrupt_is_still_corrupt() -> None:
    """The kind of an error that is of a documented kind itself."""
    assert kind_of(Corrupt("damaged")) == "Corrupt"


def test_a_narrower_kind_is_reported_by_its_documented_name(
    run: Run, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a store raises has a name of its own; programs get the one that they can know."""
    from holdfast.cli.verbs import read
    from holdfast.store.port import StoreUnavailable

    def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("the store is away", cause="disk", hint="try again")

    monkeypatch.setattr(read, "open_log", fail)
    assert reported(run, "read", log, "orders")["error"] == "Unavailable"
