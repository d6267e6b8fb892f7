from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from base64 import b64encode
from pathlib import Path

import pytest

import holdfast
from holdfast import Keyring
from tests.cli.conftest import PATIENCE, Owner, Run, Spawn, drain, objects

pytestmark = pytest.mark.disk


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A store that fails for as long as there is a file where its directory belongs."""
    (tmp_path / "place").write_text("in the way")
    return tmp_path / "place" / "store"


@pytest.fixture
def stuck(tmp_path: Path) -> Path:
    """A store that answers, and takes no commit batch."""
    (tmp_path / "stuck").mkdir()
    (tmp_path / "stuck" / "tail").write_text("in the way")
    return tmp_path / "stuck"


def on_terminal(spawn: Spawn, *arguments: object) -> tuple[subprocess.Popen[bytes], int]:
    """A verb whose words go to a terminal, and the other end of that."""
    terminal, theirs = os.openpty()
    process = spawn(*arguments, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "400"})
    os.close(theirs)
    return process, terminal


def batches(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "tail").rglob("*.arrow"))


def segments(store: Path) -> list[Path]:
    return sorted(store.rglob("*.parquet"))


def test_everything_durable_is_on_the_store_when_it_returns(run: Run, sealed_log: Path, store: Path) -> None:
    """Records, segments, objects, requests and their price are printed, and all of it is there."""
    result = run("ship", sealed_log, "--store", store, "--json", HOLDFAST_SHIPPING__DRAIN_TIMEOUT_MS="1")
    assert (result.exit_code, result.stderr) == (0, "")
    (report,) = objects(result.stdout)
    assert report.pop("seconds") > 0
    assert report["bytes"] > sum(path.stat().st_size for path in segments(store))
    assert report.pop("bytes") > 0
    assert report["dollars"] >= report["puts"] * 5e-6
    assert report.pop("dollars") > 0
    assert report["puts"] >= report["objects"] >= report["batches"] + 2 * report["segments"]
    assert {name: report[name] for name in ("store", "epoch", "records", "segments")} == {
        "store": store.as_uri(),
        "epoch": 1,
        "records": 38,
        "segments": 4,
    }
    assert (report["records_left"], report["segments_left"], report["left"]) == (0, 0, [])
    assert len(segments(store)) == 4
    assert batches(store)
    with holdfast.open(sealed_log, read_only=True) as log:
        marks = log.marks("orders")[0]
        assert (marks.durable, marks.sealed, marks.shipped, marks.settled) == (35, 30, 35, 30)


def test_the_log_remembers_its_store(run: Run, log: Path, store: Path) -> None:
    """Shipping again needs no address, sends nothing twice, and then only what is new."""
    assert run("ship", log, "--store", store).exit_code == 0
    first = batches(store)
    (again,) = objects(run("ship", log, "--json").stdout)
    assert (again["store"], again["epoch"], again["records"], again["puts"]) == (store.as_uri(), 0, 0, 0)
    run("append", log, "orders", "one more")
    (more,) = objects(run("ship", log, "--json").stdout)
    assert (more["records"], more["batches"]) == (1, 1)
    assert set(first) < set(batches(store))


def test_the_store_may_come_from_the_settings(run: Run, log: Path, store: Path) -> None:
    """Without --store the setting counts."""
    result = run("ship", log, HOLDFAST_STORE__URL=store.as_uri())
    assert (result.exit_code, "10 records in 1 commit batch, " in result.stdout) == (0, True)


def test_seal_brings_everything_into_segments(run: Run, sealed_log: Path, store: Path) -> None:
    """With --seal all that is durable is settled."""
    (report,) = objects(run("ship", sealed_log, "--store", store, "--seal", "--json").stdout)
    assert (report["segments"], report["records"]) == (6, 38)
    with holdfast.open(sealed_log, read_only=True) as log:
        assert [(marks.settled, marks.durable) for topic in log.topics() for marks in log.marks(topic)] == [
            (0, 0),
            (0, 0),
            (35, 35),
            (3, 3),
        ]


def test_what_retention_removed_before_is_not_counted(run: Run, sealed_log: Path, store: Path) -> None:
    """Records that are gone before the log has a store are not said to be shipped."""
    with holdfast.open(sealed_log) as log:
        log.set_retention("orders", records_max=1)
        log.retain()
    (report,) = objects(run("ship", sealed_log, "--store", store, "--json").stdout)
    assert (report["records"], report["records_left"]) == (15 + 3, 0)


def test_without_any_store_it_is_refused(run: Run, log: Path) -> None:
    """A log that was never shipped, and no address: exit code 1, with the option in the hint."""
    result = run("ship", log)
    assert (result.exit_code, result.stdout, "hint: give --store" in result.stderr) == (1, "", True)


def test_another_store_is_refused(run: Run, log: Path, store: Path, tmp_path: Path) -> None:
    """A log is on one store; marks of one say nothing about another."""
    run("ship", log, "--store", store)
    result = run("ship", log, "--store", tmp_path / "other")
    assert (result.exit_code, "this log is shipped to" in result.stderr) == (1, True)
    assert not (tmp_path / "other").exists()


def test_a_root_of_another_log_is_refused(run: Run, log: Path, sealed_log: Path, store: Path) -> None:
    """Two logs do not share a root."""
    assert run("ship", log, "--store", store).exit_code == 0
    before = sorted(store.rglob("*"))
    result = run("ship", sealed_log, "--store", store)
    assert (result.exit_code, "belongs to another log" in result.stderr) == (1, True)
    assert sorted(store.rglob("*")) == before


def test_no_log_is_created_by_shipping(run: Run, store: Path) -> None:
    """Where there is no log there is nothing to ship."""
    assert run("ship", "nowhere", "--store", store).exit_code == 1
    assert os.listdir() == []


def test_an_owner_ships_to_its_own_store_alone(run: Run, owner: Owner, log: Path, store: Path) -> None:
    """Beside an owner that has another store, or none, the exit code is 1, with the owner's pid."""
    result = run("ship", log, "--store", store)
    assert (result.exit_code, result.stdout, f"pid={owner.pid}" in result.stderr) == (1, "", True)


def test_a_store_that_fails_is_reported_with_what_is_left(run: Run, log: Path, broken: Path) -> None:
    """When the time is over: exit code 1, the alarm, what the store said, what is left; nothing is lost."""
    result = run("ship", log, "--store", broken, "--timeout", "1s", "--json")
    assert result.exit_code == 1
    (report,) = objects(result.stdout)
    assert (report["records"], report["records_left"], report["epoch"]) == (0, 10, 0)
    assert report["left"] == [{"topic": "orders", "partition": 0, "first": 0, "records": 10}]
    assert "warning: shipping is held up" in result.stderr
    error = objects(result.stderr.splitlines()[-1])[0]
    assert (error["error"], "not everything is on the store in time" in error["message"]) == ("Unavailable", True)
    assert "the store said: " in error["hint"]
    (status,) = objects(run("status", log, "--json").stdout)
    assert (status["records"], status["shipping"]["lag_records"], status["problems"]) == (10, 10, [])


def test_it_goes_on_where_it_stopped(run: Run, log: Path, broken: Path) -> None:
    """Once the store is back the same command brings the rest, each entry once."""
    assert run("ship", log, "--store", broken, "--timeout", "100ms").exit_code == 1
    broken.parent.unlink()
    (report,) = objects(run("ship", log, "--json").stdout)
    assert (report["records"], report["records_left"]) == (10, 0)
    assert [name[:41] for name in batches(broken)] == [f"{1:020d}-{5:020d}"]


def test_time_for_shipping_needs_a_unit(run: Run, log: Path, store: Path) -> None:
    """A number without a unit is wrong usage."""
    assert run("ship", log, "--store", store, "--timeout", "5").exit_code == 2


def test_an_interrupt_closes_cleanly_and_says_what_is_left(spawn: Spawn, run: Run, log: Path, stuck: Path) -> None:
    """Ctrl-C while the store fails: exit code 130, what is left is printed, the log is free and whole."""
    process, terminal = on_terminal(spawn, "ship", log, "--store", stuck, "--timeout", "10min", "--json")
    shown = b""
    while b"10 records and 0 segments left, " not in shown:
        shown += os.read(terminal, 65536)
    process.send_signal(signal.SIGINT)
    shown += drain(terminal)
    assert process.wait(PATIENCE) == 130
    assert process.stdout is not None
    assert objects(process.stdout.read().decode())[0]["records_left"] == 10
    assert b"interrupted; 10 records and 0 segments left, durable here as before\r\n" in shown
    assert b"Traceback" not in shown
    assert not (log / "durable.db-wal").exists()
    assert run("status", log).exit_code == 0


def test_an_interrupt_while_the_log_opens_is_reported(spawn: Spawn, run: Run, log: Path, broken: Path) -> None:
    """Ctrl-C while the store's first word is waited for: exit code 130, nothing is claimed to be shipped."""
    process = spawn("ship", log, "--store", broken, "--timeout", "10min")
    assert process.stderr is not None
    assert b"held up" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, rest = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (130, b"")
    assert b"interrupted while the log was being opened" in rest
    assert b"Traceback" not in rest
    assert run("status", log).exit_code == 0


def test_without_commit_batches_a_tail_is_not_called_shipped(run: Run, sealed_log: Path, store: Path) -> None:
    """What is sealed goes, what is not is reported and exits with 1; with --seal all of it goes."""
    off = {"HOLDFAST_SHIPPING__COMMIT_BATCHES": "false"}
    result = run("ship", sealed_log, "--store", store, "--json", **off)
    assert (result.exit_code, "hint" in result.stderr, "--seal" in result.stderr) == (1, True, True)
    (report,) = objects(result.stdout)
    assert (report["segments"], report["records_left"], report["batches"]) == (4, 6, 0)
    assert run("ship", sealed_log, "--seal", **off).exit_code == 0


def test_progress_is_shown_on_a_terminal(spawn: Spawn, log: Path, stuck: Path) -> None:
    """On a terminal there is a line with what is left and the alarm, and nothing of it on stdout."""
    process, terminal = on_terminal(spawn, "ship", log, "--store", stuck, "--timeout", "2s", "--json")
    shown = drain(terminal)
    assert process.stdout is not None
    assert len(objects(process.stdout.read().decode())) == 1
    assert process.wait(PATIENCE) == 1
    assert re.search(rb"10 records and 0 segments left, [1-9][0-9.]* (bytes|kB); .*Not a directory", shown)


def test_an_encrypted_log_is_shipped_with_its_key(run: Run, secret_log: Path, store: Path) -> None:
    """Without the key it is refused with the option in the hint; with it the payload reaches the store encrypted."""
    refused = run("ship", secret_log, "--store", store)
    assert (refused.exit_code, "hint: give --keyring" in refused.stderr) == (1, True)
    assert not store.exists()
    assert run("ship", secret_log, "--store", store, "--seal", "--keyring", "file:keys").exit_code == 0
    assert all(b"the-secret" not in path.read_bytes() for path in store.rglob("*") if path.is_file())
    assert segments(store)


def test_a_store_that_was_emptied_is_rebuilt_when_it_is_asked_for(run: Run, sealed_log: Path, store: Path) -> None:
    """Without the option nothing is written, and the hint names it; with it everything is there again."""
    assert run("ship", sealed_log, "--store", store).exit_code == 0
    before = {path.name for path in segments(store)}
    shutil.rmtree(store)
    store.mkdir()
    refused = run("ship", sealed_log)
    assert (refused.exit_code, "--rebuild-store" in refused.stderr) == (1, True)
    assert list(store.iterdir()) == []
    result = run("ship", sealed_log, "--rebuild-store", "--json")
    assert result.exit_code == 0
    (report,) = objects(result.stdout)
    assert (report["rebuilt"]["segments"], report["rebuilt"]["lost"], report["records_left"]) == (len(before), [], 0)
    assert {path.name for path in segments(store)} == before
    again = run("ship", sealed_log, "--rebuild-store")
    assert (again.exit_code, "missing there" in again.stdout) == (0, True)


def test_what_only_the_store_had_needs_insistence(run: Run, sealed_log: Path, store: Path) -> None:
    """Retention had removed it here: it is listed and given up only with --accept-loss."""
    assert run("ship", sealed_log, "--store", store, "--seal").exit_code == 0
    removed = run("retain", sealed_log, "--topic", "orders", "--records", "1", HOLDFAST_STORE__URL=str(store))
    assert removed.exit_code == 0
    shutil.rmtree(store)
    store.mkdir()
    refused = run("ship", sealed_log, "--rebuild-store")
    assert (refused.exit_code, "--accept-loss" in refused.stderr) == (1, True)
    assert list(store.iterdir()) == []
    result = run("ship", sealed_log, "--rebuild-store", "--accept-loss", "--json")
    assert result.exit_code == 0
    (report,) = objects(result.stdout)
    assert report["rebuilt"]["lost"][0]["topic"] == "orders"
    assert run("ship", sealed_log, "--accept-loss").exit_code == 2


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_secrets_given_by_mistake_are_not_repeated(run: Run, log: Path, keyring: Keyring, form: list[str]) -> None:
    """A key in place of a reference, or a password in the address, is refused without showing it."""
    key = b64encode(keyring.key("k1")).decode()
    for verb in (["ship", log], ["restore", "file:///nowhere", "new", "--yes"]):
        result = run(*verb, "--keyring", f"k1:{key}", *form)
        assert (result.exit_code, key in result.output) == (1, False)
    for verb in (["ship", log, "--store", f"s3://k:{key}@b/p"], ["restore", f"s3://k:{key}@b/p", "new"]):
        result = run(*verb, *form)
        assert (result.exit_code, key in result.output) == (2, False)


def test_other_verbs_say_that_a_shipped_log_is_opened_without_its_store(run: Run, log: Path, store: Path) -> None:
    """Appending to a shipped log without its store works, and does not pretend that it ships."""
    run("ship", log, "--store", store)
    result = run("append", log, "orders", "here only")
    assert (result.exit_code, "warning: this log is shipped to" in result.stderr) == (0, True)
    (status,) = objects(run("status", log, "--json").stdout)
    assert status["shipping"]["lag_records"] == 1


def test_a_copy_never_ships(run: Run, log: Path, store: Path, tmp_path: Path) -> None:
    """A log that was copied from the store is refused, and the store stays as it is."""
    run("ship", log, "--store", store)
    assert run("restore", store, "copy", "--copy").exit_code == 0
    before = sorted(store.rglob("*"))
    result = run("ship", "copy")
    assert (result.exit_code, "is a copy" in result.stderr) == (1, True)
    assert sorted(store.rglob("*")) == before
    shutil.rmtree(tmp_path / "copy")
