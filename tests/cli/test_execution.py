"""`holdfast execution`: looking beside an owner, changing by hand, in text and as JSON."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from uuid import UUID

import pytest

import holdfast
from holdfast import Keyring
from holdfast.execution.journal.entries import EffectIntent, StepResult
from holdfast.execution.journal.execution_id import fresh_id
from holdfast.execution.waits.promises import Promise
from tests.cli.conftest import Run, objects

pytestmark = pytest.mark.disk


def failed(log: holdfast.Log) -> UUID:
    """An execution with two finished steps and a guarded one that was only begun."""
    room = log._executions.room()
    live = room.live.open(fresh_id(room.clock), "import")
    for path in ("fetch", "rows/parse"):
        live.write(StepResult(path, b"k" * 32, "idempotent", b"\xa6secret", room.clock.now_us(), room.clock.now_us()))
    live.write(EffectIntent("charge", b"c" * 32, "exactly_once_guarded", room.clock.now_us()))
    ticket = live.finish("failed", b"\xa6secret", note="AmbiguousEffect")
    assert ticket is not None
    ticket.result()
    room.live.release(live)
    return live.id


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, UUID]:
    path = tmp_path / "log"
    with holdfast.open(path) as log:
        return path, failed(log)


def test_executions_are_listed_and_shown(run: Run, kept: tuple[Path, UUID]) -> None:
    """The list, one of them, and its timeline, for people and for programs."""
    path, execution = kept
    listed = run("execution", "list", path, "--json", "--status", "failed")
    assert (listed.exit_code, listed.stderr) == (0, "")
    assert [(line["id"], line["note"]) for line in objects(listed.stdout)] == [(str(execution), "AmbiguousEffect")]
    shown = objects(run("execution", "show", path, execution, "--json").stdout)[0]
    states = [(step["path"], step["state"], step["effect"]) for step in shown["steps"]]
    assert states == [
        ("fetch", "done", "idempotent"),
        ("rows/parse", "done", "idempotent"),
        ("charge", "begun", "exactly_once_guarded"),
    ]
    assert [event["event"] for event in shown["events"]] == ["opened", "failed"]
    steps = objects(run("execution", "timeline", path, execution, "--json").stdout)
    assert steps == shown["steps"]
    text = run("execution", "timeline", path, execution, "--width", "80").stdout
    assert [line.split()[0] for line in text.splitlines()[3:]] == ["fetch", "rows", "parse", "charge"]
    assert "no executions" in run("execution", "list", path, "--status", "queued").stderr
    assert str(execution) in run("execution", "list", path).stdout
    assert "rows/parse" in run("execution", "show", path, execution).stdout


def test_the_beginning_of_an_id_is_enough(run: Run, kept: tuple[Path, UUID]) -> None:
    """To look at one and to change it; where it is the beginning of several, or of none, that is said."""
    path, execution = kept
    assert objects(run("execution", "show", path, str(execution)[:8], "--json").stdout)[0]["execution"]["id"] == str(
        execution
    )
    assert "no execution" in run("execution", "show", path, "ffffffff").stderr
    assert run("execution", "cancel", path, str(execution)[:13]).stdout.startswith(str(execution))
    with holdfast.open(path) as log:
        failed(log)
    assert "2 executions" in run("execution", "show", path, str(execution)[:4]).stderr


def test_payloads_need_to_be_revealed_and_a_warning_comes_first(run: Run, kept: tuple[Path, UUID]) -> None:
    """Only what was asked for."""
    path, execution = kept
    for action in ("show", "timeline"):
        for as_json in ([], ["--json"]):
            assert "secret" not in run("execution", action, path, execution, *as_json).output
    text = run("execution", "show", path, execution, "--reveal")
    assert text.stderr.startswith("warning: payloads follow")
    assert 'fetch = "secret"' in text.stdout
    revealed = objects(run("execution", "show", path, execution, "--reveal", "--json").stdout)[0]
    assert (revealed["steps"][0]["value"], revealed["result"]) == ("secret", "secret")


def test_changes_by_hand(run: Run, kept: tuple[Path, UUID]) -> None:
    """Start, cancel, fork, rewind, settle, resume: each prints the id and the status, and is durable."""
    path, execution = kept
    started = objects(
        run("execution", "start", path, "report", "--args", '[1, "two"]', "--kwargs", '{"x": null}', "--json").stdout
    )[0]
    assert (started["action"], started["status"]) == ("start", "queued")
    shown = objects(run("execution", "show", path, started["id"], "--reveal", "--json").stdout)[0]
    assert shown["input"] == [[1, "two"], {"x": None}]
    again = run(
        "execution", "start", path, "report", "--args", '[1, "two"]', "--kwargs", '{"x": null}', "--id", started["id"]
    )
    assert again.stdout == f"{started['id']}  queued\n"
    assert run("execution", "cancel", path, started["id"], "--reason", "wrong").stdout == f"{started['id']}  canceled\n"
    assert run("execution", "resume", path, started["id"]).exit_code == 1
    refused = run("execution", "fork", path, execution, "--before", "fetch")
    assert (refused.exit_code, "--repeat-guarded" in refused.stderr) == (1, True)
    forked = objects(
        run("execution", "fork", path, execution, "--before", "rows", "--repeat-guarded", "--json").stdout
    )[0]
    steps = objects(run("execution", "timeline", path, forked["id"], "--json").stdout)
    assert [step["path"] for step in steps] == ["fetch"]
    assert run("execution", "settle", path, execution, "charge", "--value", '"paid"').stdout.endswith("failed\n")
    assert run("execution", "settle", path, execution, "charge", "--value", '"paid"').exit_code == 1
    assert run("execution", "resume", path, execution).stdout.endswith("queued\n")
    rewound = run("execution", "rewind", path, execution, "--before", "rows/parse", "--repeat-guarded")
    assert rewound.stdout.endswith("queued\n")
    shown = objects(run("execution", "show", path, execution, "--json").stdout)[0]
    assert [event["event"] for event in shown["events"]][-3:] == ["settled", "resumed", "rewound"]


@pytest.mark.parametrize("share", [False, True])
def test_the_owner_of_a_log_is_asked_at_once(run: Run, tmp_path: Path, share: bool) -> None:
    """Also where nobody has used executions before."""
    path = tmp_path / "log"
    with holdfast.open(path, share=share) as log:
        started = run("execution", "start", path, "import", "--json")
        assert (started.exit_code, started.stderr) == (0, "")
        assert run("execution", "cancel", path, objects(started.stdout)[0]["id"]).exit_code == 0
        assert [one.status for one in log.executions.list()] == ["canceled"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["settle", "ID", "charge"],
        ["settle", "ID", "charge", "--value", "paid"],
        ["settle", "ID", "charge", "--value", "1", "--error", "e"],
        ["start", "report", "--args", "{}"],
        ["start", "report", "--kwargs", "[]"],
        ["start", "report", "--not-before", "tomorrow"],
        ["start", "report", "--not-before", "2026-12-01"],
        ["rewind", "ID"],
        ["list", "--status", "done"],
        ["lisst"],
        [],
    ],
)
def test_wrong_usage_is_reported(run: Run, kept: tuple[Path, UUID], arguments: list[str]) -> None:
    """Exit code 2, and nothing was changed."""
    path, execution = kept
    given = [str(execution) if one == "ID" else one for one in arguments]
    result = run("execution", *given[:1], path, *given[1:]) if given else run("execution")
    assert result.exit_code == 2, result.output
    assert len(objects(run("execution", "list", path, "--json").stdout)) == 1


def test_what_is_not_there_is_not_found(run: Run, kept: tuple[Path, UUID]) -> None:
    """With a remedy; an id that is none is called so."""
    path, _ = kept
    unknown = str(UUID(int=7))
    for action in ("show", "timeline", "cancel", "resume", "fork"):
        result = run("execution", action, path, unknown)
        assert (result.exit_code, "no such execution" in result.stderr) == (1, True), action
        assert run("execution", action, path, "seven").exit_code == 1


def test_a_log_with_keys_asks_for_them(run: Run, tmp_path: Path) -> None:
    """Without the keyring nothing is shown; with it, everything is."""
    keyring = Keyring.generate()
    file = tmp_path / "keyring"
    run("keys", "new", file)
    keyring = Keyring.from_reference(f"file:{file}")
    with holdfast.open(tmp_path / "log", keyring=keyring) as log:
        execution = failed(log)
    assert run("execution", "show", tmp_path / "log", execution).exit_code == 1
    result = run("execution", "show", tmp_path / "log", execution, "--keyring", f"file:{file}", "--json")
    assert len(json.loads(result.stdout)["steps"]) == 3


def test_a_tampered_journal_is_reported_as_damage(run: Run, kept: tuple[Path, UUID]) -> None:
    """Exit code 3: an edited block is never shown."""
    path, execution = kept
    with sqlite3.connect(path / "durable.db") as database:
        database.execute("UPDATE space_items SET body = zeroblob(length(body)) WHERE length(body) > 200")
    result = run("execution", "show", path, execution)
    assert (result.exit_code, result.stdout) == (3, "")


def test_promises_and_signals_come_from_outside(run: Run, tmp_path: Path) -> None:
    """A promise is settled by its token, which is no argument; a signal is sent once, however often it is sent."""
    path = tmp_path / "log"
    with holdfast.open(path) as log, pytest.raises(KeyboardInterrupt), log.execution("order") as ctx:
        execution = ctx.id
        promise = Promise(ctx.live, log._executions.room().waiters, ctx.live.place("approval"))
        (tmp_path / "token").write_text(promise.token())
        raise KeyboardInterrupt
    asked = ["execution", "resolve", path, "--token", f"file:{tmp_path / 'token'}"]
    settled = run(*asked, "--value", '{"by": "me"}')
    assert (settled.stdout, settled.exit_code) == ("done\n", 0)
    assert objects(run(*asked, "--json").stdout) == [{"action": "settle_promise", "is_new": False}]
    token = (tmp_path / "token").read_text()
    assert run("execution", "resolve", path, "--token", "env:TOKEN", TOKEN=token).stdout == "it was done before\n"
    assert run("execution", "resolve", path, "--token", "-", stdin=token.encode()).stdout == "it was done before\n"
    for wrong in (token, "env:NOWHERE", f"file:{tmp_path / 'nowhere'}"):
        refused = run("execution", "resolve", path, "--token", wrong)
        assert (refused.exit_code, token in refused.output) == (2, False)
    forged = token[:-4] + ("aaaa" if token[-4:] != "aaaa" else "bbbb")
    assert run("execution", "resolve", path, "--token", "env:TOKEN", TOKEN=forged).exit_code == 1
    number = str(UUID(int=7))
    for answer in ("done\n", "it was done before\n"):
        assert run("execution", "signal", path, execution, "paid", "--value", "42", "--id", number).stdout == answer
    with holdfast.open(path) as log, log.execution("order", id=execution) as ctx:
        assert Promise(ctx.live, log._executions.room().waiters, "approval").result() == {"by": "me"}
        assert [sent.name for sent in ctx.live.recorded.signals.values()] == ["paid"]


def test_old_executions_are_pruned(run: Run, kept: tuple[Path, UUID]) -> None:
    """As the settings say; first how many, then they are gone."""
    path, execution = kept
    short = {"HOLDFAST_EXECUTIONS__KEEP_FAILED_MS": "1"}
    assert objects(run("execution", "prune", path, "--json").stdout) == [{"executions": 0, "dry_run": False}]
    assert run("execution", "prune", path, "--dry-run", **short).stdout == "1 would go\n"
    assert run("execution", "show", path, execution).exit_code == 0
    assert run("execution", "prune", path, **short).stdout == "1 removed\n"
    assert run("execution", "show", path, execution).exit_code == 1
