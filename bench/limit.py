"""The limit: what SQLite itself does on this disk, with nothing of ours in the way.

Measured: one connection, one thread, `executemany` of a prepared list of `group` rows of 200 bytes, one
transaction per group, WAL, synchronous=FULL, page size 4096, automatic checkpoint at 1000 pages (checkpoints
fall inside the clock). Latency is that of a whole transaction, from BEGIN until COMMIT has returned, because
that is what a row in the group waits for.

No journal can beat this with the same rows and settings: there are no producers, no queue, no wake-up, no
sequence to hand back, no encryption, and the rows are built once, outside the clock. (Other rows can: one
blob that holds a whole group is cheaper than the group.) A comparison with a *smaller* group than the journal
forms under load would be unfair to the limit; with c producers in a closed loop, compare with group c.
"""

from __future__ import annotations

import time
from pathlib import Path

import apsw

from bench.measure import PAYLOAD, Contestant, Sample, sample_of

GROUPS = (1, 64, 128, 256, 1000)
SETTINGS = {"page_size": 4096, "journal_mode": "wal", "synchronous": 2, "wal_autocheckpoint": 1000}


def name_of(group: int) -> str:
    return f"limit, group {group}"


def contestant(directory: Path, group: int) -> Contestant:
    """The limit for one group size, ready to be interleaved."""
    return Contestant(name_of(group), lambda seconds: run(directory, group, seconds))


def run(directory: Path, group: int, seconds: float) -> Sample:
    """Commit groups into a fresh database until the time is over."""
    path = directory / "limit.db"
    connection = _open(path)
    try:
        cpu = time.process_time()
        stamps = _commit_groups(connection, [(PAYLOAD,)] * group, seconds)
        cpu = time.process_time() - cpu
    finally:
        connection.close()
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    return sample_of(name_of(group), [stamps], cpu, rows_per_stamp=group)


def _open(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    for setting, wanted in SETTINGS.items():
        connection.pragma(setting, wanted)
        found = connection.pragma(setting)
        if found != wanted:
            connection.close()
            raise RuntimeError(f"SQLite refused a setting; setting={setting} wanted={wanted} found={found}")
    connection.execute("CREATE TABLE log(seq INTEGER PRIMARY KEY, payload BLOB NOT NULL)")
    return connection


def _commit_groups(connection: apsw.Connection, rows: list[tuple[bytes]], seconds: float) -> list[float]:
    _commit(connection, rows)
    stamps = [time.perf_counter()]
    deadline = stamps[0] + seconds
    while stamps[-1] < deadline:
        _commit(connection, rows)
        stamps.append(time.perf_counter())
    return stamps


def _commit(connection: apsw.Connection, rows: list[tuple[bytes]]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT INTO log(payload) VALUES (?)", rows)
    connection.execute("COMMIT")
