"""Roots that an older holdfast wrote: every reader reads them, their log writes on in them, and they can be moved."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Corrupt, Invalid, Keyring, Log, Settings
from holdfast.recovery.root_migration import migrate_root
from holdfast.shipping.shipping_marks import say
from holdfast.store import layout
from tests.reader.conftest import open_shipped, root  # noqa: F401  (fixtures)
from tests.segments.planting import TEN, fill
from tests.store.old_roots import make_old

pytestmark = pytest.mark.store

OLD_FOLDERS = {"topic", "manifest", "checkpoints", "expired"}
_CLI = "from holdfast.cli import main; main()"
PAYLOADS = [b"%d" % number for number in range(32)]


def folders(place: Path) -> set[str]:
    """Names of folders of documents below a root, as far as they hold anything."""
    names = {path.parent.name for path in place.rglob("*") if path.is_file()}
    return names & (OLD_FOLDERS | {"_" + name for name in OLD_FOLDERS})


@pytest.fixture(params=["plain", "encrypted"])
def keys(request: pytest.FixtureRequest, keyring: Keyring) -> dict[str, Keyring]:
    return {"keyring": keyring} if request.param == "encrypted" else {}


@pytest.fixture
def reading(tmp_path: Path, keys: dict[str, Keyring]) -> dict[str, Any]:
    """What a reader must say: where its keys are, and that it knows that nothing is signed."""
    if not keys:
        return {}
    keys["keyring"].save(tmp_path / "keys")
    return {"keyring": f"file:{tmp_path / 'keys'}", "allow_unsigned": True}


@pytest.fixture
def write(open_shipped: Callable[..., Log], keys: dict[str, Keyring]) -> Callable[..., Log]:  # noqa: F811
    return lambda **options: open_shipped(segments=TEN, shipping={"checkpoint_every": 2}, **keys, **options)


@pytest.fixture
def old(write: Callable[..., Log], root: Path) -> Path:  # noqa: F811
    """A root of format 1 with two segments of ten, a checkpoint, and a tail of two."""
    log = write()
    fill(log, "orders", 2)
    log.ship(30)
    for payload in (b"20", b"21"):
        log.topic("orders").append(payload, durability="shipped")
    say(log._journal, root_format=0)  # as in a database of that time
    log.close()
    make_old(root)
    assert "manifest" in folders(root)
    return root


def values(place: Path | str, **options: Any) -> list[bytes]:
    return holdfast.read(str(place), "orders", **options).to_arrow()["payload"].to_pylist()


def test_an_old_root_is_read_and_written_on_as_it_is(
    old: Path, write: Callable[..., Log], reading: dict[str, Any]
) -> None:
    assert values(old, **reading) == PAYLOADS[:20]
    assert values(old, include_tail=True, **reading) == PAYLOADS[:22]
    log = write()
    for payload in PAYLOADS[22:30]:
        log.topic("orders").append(payload)
    log.seal()
    log.ship(30)
    assert log.reconcile(remote=True).clean
    for payload in PAYLOADS[30:]:
        log.topic("orders").append(payload, durability="shipped")
    log.close()
    assert folders(old) == {"topic", "manifest", "checkpoints"}
    assert values(old, include_tail=True, **reading) == PAYLOADS


def test_a_keyring_alone_does_not_read_what_nobody_signed(old: Path, reading: dict[str, Any]) -> None:
    if reading:
        with pytest.raises(Invalid, match="migrate-root"):
            values(old, keyring=reading["keyring"])


def test_an_old_root_is_restored_and_goes_on_in_its_layout(
    old: Path, open_log: Callable[..., Log], keys: dict[str, Keyring], tmp_path: Path
) -> None:
    insist = {"allow_unsigned": True} if keys else {}
    report = holdfast.restore(str(old), tmp_path / "restored", settings=Settings(), **keys, **insist)
    assert any("not signed" in told for told in report.not_proved) == bool(keys)
    log = open_log("restored", settings=Settings.from_mapping({"store": {"url": str(old)}}), **keys)
    log.topic("orders").append(b"22", durability="shipped")
    assert [record.payload for record in log.topic("orders").read()] == PAYLOADS[:23]
    log.close()
    assert not folders(old) & {"_" + name for name in OLD_FOLDERS}


# -- moving -----------------------------------------------------------------------------------------------


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def test_a_root_moves_to_another_and_its_log_goes_on_there(
    old: Path, new: Path, write: Callable[..., Log], keys: dict[str, Keyring], reading: dict[str, Any],
    open_log: Callable[..., Log],
) -> None:  # fmt: skip
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    report = migrate_root(str(old), str(new), settings=Settings(), **keys)
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before
    assert (report.segments, report.left_out) == (2, 0)
    assert bool(report.unproved) == bool(keys)
    proved = {"keyring": reading["keyring"]} if keys else {}
    assert values(new, include_tail=True, **proved) == PAYLOADS[:22]
    assert folders(new) == {"_topic", "_manifest", "_checkpoints"}
    sections = {"store": {"url": str(new), "move": True}, "segments": TEN}
    log = open_log(settings=Settings.from_mapping(sections), **keys)
    for payload in PAYLOADS[22:30]:
        log.topic("orders").append(payload)
    log.seal()
    log.ship(30)
    for payload in PAYLOADS[30:]:
        log.topic("orders").append(payload, durability="shipped")
    assert log.reconcile(remote=True, deep=True).clean
    log.close()
    assert values(new, include_tail=True, **proved) == PAYLOADS


def test_a_log_that_moves_hides_nothing_that_only_the_store_has_left(
    old: Path, new: Path, write: Callable[..., Log], keys: dict[str, Keyring], reading: dict[str, Any],
    open_log: Callable[..., Log],
) -> None:  # fmt: skip
    """Retention here had removed a segment: it is not shipped anew, and not said to be gone either."""
    log = write(retention={"records_max": 5})
    log.retain()
    assert next(record.offset for record in log.topic("orders").read()) >= 10
    log.close()
    migrate_root(str(old), str(new), settings=Settings(), **keys)
    log = open_log(settings=Settings.from_mapping({"store": {"url": str(new), "move": True}}), **keys)
    log.topic("orders").append(b"22", durability="shipped")
    assert log.reconcile(remote=True).clean
    log.close()
    proved = {"keyring": reading["keyring"]} if keys else {}
    assert values(new, include_tail=True, **proved) == PAYLOADS[:23]


def test_an_interrupted_move_goes_on(old: Path, new: Path, keys: dict[str, Keyring], reading: dict[str, Any]) -> None:
    """Nobody reads a root that is not whole; and nothing is copied twice."""
    migrate_root(str(old), str(new), settings=Settings(), **keys)
    (new / layout.LOG).unlink()
    gone = max((new / "topics").rglob("*.parquet"))
    gone.unlink()
    with pytest.raises(holdfast.NotFound):
        values(new, **{name: value for name, value in reading.items() if name == "keyring"})
    report = migrate_root(str(old), str(new), settings=Settings(), **keys)
    assert report.resumed > 3
    assert gone.exists()
    again = migrate_root(str(old), str(new), settings=Settings(), **keys)
    assert again.bytes == 0


def test_a_move_refuses_what_is_damaged_or_somebody_elses(
    old: Path, new: Path, keys: dict[str, Keyring], tmp_path: Path
) -> None:
    segment = min((old / "topics/orders/0/segments").iterdir())
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-200] + bytes([whole[-200] ^ 1]) + whole[-199:])
    with pytest.raises(Corrupt):
        migrate_root(str(old), str(new), settings=Settings(), **keys)
    assert not (new / layout.LOG).exists()
    segment.write_bytes(whole)
    with pytest.raises(Invalid, match="not the directory of a log"):
        migrate_root(str(old), settings=Settings(), **keys)
    migrate_root(str(old), str(tmp_path / "fresh"), settings=Settings(), **keys)
    with pytest.raises(Invalid, match="present format already"):
        migrate_root(str(tmp_path / "fresh"), str(tmp_path / "again"), settings=Settings(), **keys)


def test_a_logs_own_directory_moves_in_place(
    open_log: Callable[..., Log], keys: dict[str, Keyring], reading: dict[str, Any]
) -> None:
    log = open_log(segments=TEN, **keys)
    fill(log, "orders", 2)
    log.close()
    own = log.path / "segments"
    make_old(own)
    report = migrate_root(log.path, settings=Settings(), **keys)
    assert report.segments == 2
    assert folders(own) == {"_topic", "_manifest"}
    proved = {"keyring": reading["keyring"]} if keys else {}
    assert values(log.path, **proved) == PAYLOADS[:20]
    log = open_log(segments=TEN, **keys)
    fill(log, "orders", 1)
    log.close()
    assert values(log.path, **proved) == PAYLOADS[:30]


def test_an_old_directory_of_its_own_is_written_on_as_it_is_without_keys(open_log: Callable[..., Log]) -> None:
    log = open_log(segments=TEN)
    fill(log, "orders", 2)
    log.close()
    make_old(log.path / "segments")
    log = open_log(segments=TEN)
    log.topic("orders").append_batch([b"%d" % n for n in range(20, 30)], timeout=30)
    log.seal()
    log.close()
    assert folders(log.path / "segments") == {"topic", "manifest"}
    assert values(log.path) == PAYLOADS[:30]


def test_the_command_moves_a_root_and_says_what(old: Path, new: Path, keys: dict[str, Keyring], tmp_path: Path) -> None:
    options = []
    if keys:
        keys["keyring"].save(tmp_path / "keys")
        options = ["--keyring", f"file:{tmp_path / 'keys'}"]
    command = [sys.executable, "-c", _CLI, "migrate-root", str(old), str(new), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout)["segments"] == 2
    assert (new / layout.LOG).exists()
