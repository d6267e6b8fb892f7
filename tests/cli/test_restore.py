from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import holdfast
from holdfast import Closed, HoldfastError, Keyring
from tests.cli.conftest import PATIENCE, Run, Spawn, drain, objects

pytestmark = pytest.mark.disk


@pytest.fixture
def store(run: Run, sealed_log: Path, tmp_path: Path) -> Path:
    """The store that `sealed_log` was shipped to: segments, and a tail in commit batches."""
    assert run("ship", sealed_log, "--store", tmp_path / "store").exit_code == 0
    return tmp_path / "store"


def epochs(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "epochs").iterdir())


def payloads(path: Path) -> list[bytes]:
    with holdfast.open(path, read_only=True) as log:
        return [record.payload for record in log.topic("orders").read()]


def test_a_lost_machine_is_brought_back(run: Run, sealed_log: Path, store: Path) -> None:
    """Every record that was shipped is there, from segments and from commit batches, and the log goes on."""
    shutil.rmtree(sealed_log)
    result = run("restore", store, "back", "--yes", "--json")
    (report,) = objects(result.stdout)
    assert result.exit_code == 0
    assert report.pop("bytes") > 0
    assert len(report.pop("log")) == 32
    assert report.pop("acknowledged_seq") >= 0
    assert ["not encrypted" in claim for claim in report.pop("not_proved")] == [True]
    assert report == {
        "store": store.as_uri(),
        "epoch": 2,
        "topics": 3,
        "partitions": 4,
        "segments": 4,
        "records": 38,
        "tail_records": 6,
        "resumed": 0,
        "expired": 0,
        "cut_batches": 0,
        "cut_records": 0,
        "lost_commits": 0,
        "lost_settled": [],
        "keys": 0,
        "policies": [],
        "expiries": [],
        "sink_topics": [],
    }
    assert payloads(Path("back")) == [b"payload-%d" % n for n in range(35)]
    run("append", "back", "orders", "goes on", HOLDFAST_STORE__URL=store.as_uri())
    (status,) = objects(run("status", "back", "--json").stdout)
    assert (status["problems"], status["shipping"]["lag_records"]) == ([], 0)


def test_text_says_what_came_back(run: Run, store: Path) -> None:
    """In text: whose log, under which claim, how much; what did not happen is not mentioned."""
    text = run("restore", store, "back", "--yes").stdout
    assert "records           38, of them 6 in the tail\n" in text
    assert "epoch             2\n" in text
    assert "not proved        the log is not encrypted" in text
    assert not any(word in text for word in ("here already", "expired", "left out", "LOST", "will be deleted"))


def test_a_loss_stops_it_unless_it_is_accepted(run: Run, sealed_log: Path, store: Path) -> None:
    """Exit code 3, a hint with the option, and nothing is changed; then the text says what is lost, and what goes."""
    log = holdfast.open(sealed_log, store=store)
    log.set_retention("orders", records_max=1000)
    for n in range(4):
        log.topic("orders").append(b"%d" % n, durability="shipped")
    log.close()
    _, missing, *_ = sorted(store.glob("tail/*/*.arrow"))[-4:]
    missing.unlink()
    refused = run("restore", store, "back", "--yes")
    assert refused.exit_code == 3
    assert "--accept-loss" in refused.stderr
    assert len(epochs(store)) == 2
    result = run("restore", store, "back", "--yes", "--accept-loss")
    assert result.exit_code == 0
    assert "LOST" in result.stdout
    assert "commits that were acknowledged" in result.stdout
    assert "they stay on the store" in result.stdout
    assert "orders: what is beyond 1000 records" in result.stdout


@pytest.mark.parametrize("answer", [b"n\n", b"\n", b""])
def test_it_says_that_it_takes_over_and_asks(run: Run, store: Path, answer: bytes) -> None:
    """Unless the answer is yes nothing happens, here or on the store."""
    result = run("restore", store, "back", stdin=answer)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "this takes the log over: its current owner is fenced" in result.stderr
    assert "nothing was changed" in result.stderr
    assert (len(epochs(store)), Path("back").exists()) == (1, False)
    assert run("restore", store, "back", stdin=b"y\n").exit_code == 0
    assert len(epochs(store)) == 2


def test_a_copy_takes_nothing_over(run: Run, sealed_log: Path, store: Path) -> None:
    """--copy says so, does not ask, and leaves the store to its owner, who goes on while it is made."""
    before = sorted(store.rglob("*"))
    with holdfast.open(sealed_log, store=store) as owner:
        result = run("restore", store, "copy", "--copy", "--json")
        assert sorted(store.rglob("*")) == before
        owner.topic("orders").append(b"goes on", durability="shipped")
    assert (result.exit_code, objects(result.stdout)[0]["epoch"]) == (0, 0)
    assert "its owner continues, and the copy never ships" in result.stderr
    assert "takes the log over" not in result.stderr
    assert len(payloads(Path("copy"))) == 35
    (status,) = objects(run("status", "copy", "--json").stdout)
    assert status["shipping"]["copy"] is True
    assert "of which this is a copy" in run("status", "copy").stdout


def test_the_old_owner_is_shut_out_and_its_stranded_records_are_listed(run: Run, sealed_log: Path, store: Path) -> None:
    """After a takeover nothing of the old owner is acknowledged as shipped; status shows what it wrote."""
    with holdfast.open(sealed_log, store=store) as owner:
        topic = owner.topic("orders")
        topic.append(b"in time", durability="shipped")
        assert run("restore", store, "back", "--yes").exit_code == 0
        with pytest.raises(Closed) as refused:
            topic.append(b"too late", durability="shipped")
        assert refused.value.reason == "fenced"
    assert payloads(Path("back"))[-1] == b"in time"
    (status,) = objects(run("status", sealed_log, "--json").stdout)
    shipping = status["shipping"]
    assert (shipping["fenced"], shipping["stranded_records"], shipping["lag_records"]) == (True, 1, 0)
    assert "taken this log over" in shipping["ended"]
    assert [p["stranded"] for topic in status["topics"] for p in topic["partitions"] if p["stranded"]] == [1]
    text = run("status", sealed_log).stdout
    assert "another process has taken this log over" in text
    assert "stranded" in text
    assert "not there yet" not in text


def test_an_old_directory_that_is_opened_again_after_a_takeover_ships_nothing(
    run: Run, sealed_log: Path, store: Path
) -> None:
    """Restored elsewhere, the log lives there: the directory that was left behind does not take it back."""
    assert run("restore", store, "back", "--yes").exit_code == 0
    with pytest.raises(HoldfastError), holdfast.open(sealed_log, store=store) as old:
        old.topic("orders").append(b"from the dead", durability="shipped")


def test_a_directory_that_is_not_empty_is_refused(run: Run, sealed_log: Path, store: Path, tmp_path: Path) -> None:
    """Neither a log nor anything else is written over, and nothing is claimed."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary").write_text("mine")
    for path in (sealed_log, tmp_path / "full"):
        result = run("restore", store, path, "--yes")
        assert (result.exit_code, "hint: restore into a new or empty directory" in result.stderr) == (1, True)
    assert len(epochs(store)) == 1
    assert len(payloads(sealed_log)) == 35


def test_a_root_without_a_log_is_refused(run: Run, tmp_path: Path) -> None:
    """Where there is no log on the store, there is nothing to bring back."""
    result = run("restore", tmp_path / "nowhere", "back", "--yes")
    assert (result.exit_code, "there is no log at this root" in result.stderr) == (1, True)


@pytest.mark.parametrize("url", ["nowhere", "ftp://example.org/x", "s3:", "file://host/path"])
def test_what_is_no_store_is_wrong_usage(run: Run, url: str) -> None:
    """An address that means nothing exits with 2."""
    assert run("restore", url, "back").exit_code == 2


def test_damage_on_the_store_exits_with_3_and_a_repair_goes_on(run: Run, store: Path) -> None:
    """A segment that is not what its hash says is not taken; once it is repaired the same command goes on."""
    segment = min(store.rglob("*.parquet"))
    good = segment.read_bytes()
    segment.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    result = run("restore", store, "back", "--yes")
    assert (result.exit_code, "a segment on the store is damaged" in result.stderr) == (3, True)
    assert run("status", "back").exit_code == 1
    segment.write_bytes(good)
    (report,) = objects(run("restore", store, "back", "--yes", "--json").stdout)
    assert (report["records"], report["epoch"], report["segments"]) == (38, 2, 4)
    assert report["resumed"] > 0


def test_an_encrypted_log_is_restored_with_its_key(
    run: Run, secret_log: Path, tmp_path: Path, keyring: Keyring
) -> None:
    """Without the key it is refused with the option in the hint; with it the record is back."""
    store = tmp_path / "sealed-store"
    assert run("ship", secret_log, "--store", store, "--seal", "--keyring", "file:keys").exit_code == 0
    refused = run("restore", store, "back", "--yes")
    assert (refused.exit_code, "hint: give --keyring" in refused.stderr) == (1, True)
    assert run("restore", store, "back", "--yes", "--keyring", "file:keys").exit_code == 0
    assert run("read", "back", "orders", "--raw", "--keyring", "file:keys").stdout == "the-secret-payload\n"


def test_a_restore_shows_its_progress_on_a_terminal(spawn: Spawn, store: Path) -> None:
    """On a terminal a line says what is being fetched, and nothing of it is on stdout."""
    terminal, other = os.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    process = spawn("restore", store, "back", "--yes", "--json", stderr=other, env=environ)
    os.close(other)
    shown = drain(terminal)
    assert process.stdout is not None
    assert len(objects(process.stdout.read().decode())) == 1
    assert process.wait(PATIENCE) == 0
    assert b"making the database: " in shown
