"""A disk without room says so and what to do about it, wherever it is met: a real file system of a few megabytes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Settings, Unavailable
from holdfast.errors import HoldfastError

pytestmark = pytest.mark.disk

SECTIONS = {"disk": {"free_bytes_min": 0}, "segments": {"seal_on_close": False}}
SETTINGS = Settings.from_mapping(SECTIONS)
ROOM = "free space"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path, leave: int = 0) -> None:
    """Take all room but so many bytes."""
    with (place / "filler").open("ab", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            pass
        if leave:
            filler.truncate(max(0, filler.seek(0, os.SEEK_END) - leave))


def test_transactions_meet_a_full_disk(small: Path) -> None:
    """One that finds no room leaves nothing behind in any topic or space; the log goes on when there is room again."""
    topics, spaces = ("a", "b", "c"), ("s", "t")

    def commit(number: int, size: int) -> None:
        with log.transaction() as tx:
            for topic in topics:
                tx.append(topic, b"%d " % number + bytes(size))
            for space in spaces:
                tx.put(space, "newest", b"%d " % number + bytes(size))

    with holdfast.open(small / "log", settings=SETTINGS) as log:
        commit(0, 10)
        fill(small)
        last = 0
        with pytest.raises(Unavailable, match="the disk is full"):
            while True:
                commit(last + 1, 30_000)
                last += 1
        (small / "filler").unlink()
        commit(last + 1, 10)
        wanted = [b"%d" % number for number in range(last + 2)]
        for topic in topics:
            assert [record.payload.split()[0] for record in log.topic(topic).read()] == wanted
        for space in spaces:
            assert (log.space(space).get("newest") or b"").split()[0] == wanted[-1]


def test_appends_meet_a_full_disk(small: Path) -> None:
    """The append that finds no room is Unavailable and says how to get some; what was acknowledged stays."""
    with holdfast.open(small / "log", settings=SETTINGS) as log:
        topic = log.topic("orders")
        topic.append(b"first")
        fill(small)
        with pytest.raises(Unavailable, match="the disk is full") as caught:
            for _ in range(100):
                topic.append(bytes(64 * 1024))
        assert ROOM in caught.value.hint
        (small / "filler").unlink()
        topic.append(b"last")
        payloads = [record.payload for record in topic.read()]
        assert (payloads[0], payloads[-1]) == (b"first", b"last")


def test_sealing_meets_a_full_disk(small: Path) -> None:
    """A segment that finds no room: the same, and the records stay."""
    # A file of groups that is prepared meanwhile, and finds no room, would leave what it had taken.
    settings = Settings.from_mapping({**SECTIONS, "journal": {"group_file_bytes": 0}})
    with holdfast.open(small / "log", settings=settings) as log:
        topic = log.topic("orders")
        topic.append(os.urandom(512 * 1024))
        fill(small, leave=64 * 1024)
        with pytest.raises(Unavailable, match="No space left") as caught:
            log.seal()
        assert ROOM in caught.value.hint
        (small / "filler").unlink()
        log.seal()


@pytest.mark.parametrize("leave", [0, 8 * 1024])
def test_a_log_is_opened_on_a_full_disk(small: Path, leave: int) -> None:
    """So does a new log that finds no room, however far it comes."""
    fill(small, leave)
    with pytest.raises(HoldfastError) as caught:
        holdfast.open(small / "log", settings=SETTINGS).close()
    assert isinstance(caught.value, Unavailable)
    assert ROOM in caught.value.hint


def test_the_command_line_meets_a_full_disk(small: Path) -> None:
    """The remedy is the hint, and the exit code is 1."""
    fill(small, leave=8 * 1024)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "append", str(small / "log"), "orders", "x"],
        capture_output=True,
        text=True,
        env={**os.environ, "HOLDFAST_DISK__FREE_BYTES_MIN": "0"},
        check=False,
    )
    assert done.returncode == 1
    assert "hint: the disk or its quota is full: free space" in done.stderr


def test_a_root_on_a_full_disk(small: Path) -> None:
    """A store in a directory without room: those who wait learn of it."""
    fill(small, leave=64 * 1024)
    settings = Settings.from_mapping(
        {"disk": {"free_bytes_min": 0}, "shipping": {"shipped_timeout_ms": 500, "drain_timeout_ms": 100}}
    )
    with holdfast.open(small.parent / "log", store=small / "root", settings=settings) as log:
        log.topic("orders").append(os.urandom(256 * 1024))
        with pytest.raises(Unavailable):
            log.topic("orders").append(b"x", durability="shipped")
        stats = log.stats().shipping
        assert stats is not None
        assert "No space left" in (stats.last_error or "")
