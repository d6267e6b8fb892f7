from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Keyring
from tests.cli.conftest import Owner, Run, objects, segment_files

pytestmark = pytest.mark.disk


def payloads(path: Path) -> list[bytes]:
    with holdfast.open(path, read_only=True) as log:
        return [record.payload for record in log.topic("orders").read()]


def test_a_lost_database_is_made_anew_and_what_is_lost_is_reported(run: Run, sealed_log: Path) -> None:
    """Everything sealed can be read again; what was only in the tail is reported as lost, with exit code 3."""
    (sealed_log / "durable.db").unlink()
    result = run("rebuild", sealed_log, "--yes", "--json")
    (report,) = objects(result.stdout)
    assert result.exit_code == 3
    assert (report["segments"], report["records"], report["salvaged"], report["set_aside"]) == (4, 32, 0, None)
    places = {(lost["topic"], lost["partition"], lost["first"], lost["records"]) for lost in report["lost"]}
    assert ("orders", 0, 30, None) in places
    assert all(lost["reason"] for lost in report["lost"])
    assert payloads(sealed_log) == [b"payload-%d" % n for n in range(30)]
    assert run("reconcile", sealed_log, "--deep").exit_code == 0


def test_text_names_every_loss(run: Run, sealed_log: Path) -> None:
    """In text a loss is a line: where, from which offset, how many, why."""
    (sealed_log / "durable.db").unlink()
    result = run("rebuild", sealed_log, "--yes")
    assert result.exit_code == 3
    table = result.stdout[result.stdout.index("topic ") :].splitlines()
    assert table[0].split() == ["topic", "partition", "first", "records", "reason"]
    assert ["orders", "0", "30", "unknown"] in [line.split()[:4] for line in table[1:]]


def test_nothing_is_lost_where_the_tail_can_be_read(run: Run, sealed_log: Path) -> None:
    """A database that is whole loses nothing, is kept aside, and the exit code is 0."""
    result = run("rebuild", sealed_log, "--yes", "--json")
    (report,) = objects(result.stdout)
    assert (result.exit_code, report["lost"], report["salvaged"]) == (0, [], 6)
    assert Path(report["set_aside"]).exists()
    assert len(payloads(sealed_log)) == 35


@pytest.mark.parametrize("answer", [b"n\n", b"\n", b""])
def test_it_asks_first(run: Run, sealed_log: Path, answer: bytes) -> None:
    """Without --yes it asks on stderr, and nothing is changed unless the answer is yes."""
    (sealed_log / "durable.db").unlink()
    result = run("rebuild", sealed_log, stdin=answer)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing was changed" in result.stderr
    assert not (sealed_log / "durable.db").exists()
    assert run("rebuild", sealed_log, stdin=b"y\n").exit_code == 3
    assert (sealed_log / "durable.db").exists()


def test_an_owned_log_is_refused(run: Run, owner: Owner, log: Path) -> None:
    """A log that somebody owns is not rebuilt under his feet."""
    (log / "segments").mkdir(exist_ok=True)
    result = run("rebuild", log, "--yes")
    assert (result.exit_code, f"pid={owner.pid}" in result.stderr) == (1, True)


def test_no_log_is_no_log(run: Run) -> None:
    """Where there are no segments there is nothing to rebuild, and nothing is created."""
    result = run("rebuild", "nowhere", "--yes")
    assert (result.exit_code, Path("nowhere").exists()) == (1, False)


def test_an_encrypted_log_needs_its_key(run: Run, secret_log: Path, keyring: Keyring) -> None:
    """Without the key it is refused with the option in the hint; with it the records are back."""
    with holdfast.open(secret_log, keyring=keyring) as opened:
        opened.seal()
    (secret_log / "durable.db").unlink()
    refused = run("rebuild", secret_log, "--yes")
    assert (refused.exit_code, "hint: give --keyring" in refused.stderr) == (1, True)
    assert run("rebuild", secret_log, "--yes", "--keyring", "file:keys").exit_code == 3
    assert run("read", secret_log, "orders", "--raw", "--keyring", "file:keys").stdout == "the-secret-payload\n"
    assert segment_files(secret_log)
