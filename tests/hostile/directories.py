"""A keyed log's directory with one of everything, at two moments, as somebody without keys may change its files.

The *earlier* moment is a backup that an attacker kept; the *later* one is what the owner has. Files of the later one
are damaged, swapped, removed, or put back to what they were. The directory is kept as its files, in two states: as a
closed log leaves them, and as a killed owner does, with a write-ahead log and groups whose rows are not in the
database yet.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import holdfast
from holdfast import Keyring, Log, Settings
from tests.hostile.mutations import SPECIALS, Mutation, flipped
from tests.hostile.roots import SCHEMA, Objects, objects_of, row

SETTINGS = Settings.from_mapping(
    {
        "journal": {"ack_timeout_ms": "60s"},
        "segments": {"rows_max": 10_000, "age_max_ms": "1h", "seal_on_close": False},
        "retention": {"interval_ms": 3_600_000},
        "reconcile": {"pass_interval_ms": 3_600_000},
        "disk": {"free_bytes_min": 0},
    }
)
LEFT_OUT = ("LOCK", "owner.sock")
"""What a log makes anew whenever it is opened."""


class Directory(NamedTuple):
    """The files of one state: those of the moment before, and the present ones."""

    earlier: Objects
    later: Objects


def make(base: Path, keyring: Keyring) -> dict[str, Directory]:
    """A log's directory, closed and killed."""
    path = base / "log"
    with holdfast.open(path, settings=SETTINGS, keyring=keyring) as log:
        fill(log, 0)
        log.seal()
        fill(log, 1)
        killed_earlier = files_of(path)
    closed_earlier = files_of(path)
    with holdfast.open(path, settings=SETTINGS, keyring=keyring) as log:
        fill(log, 2)
        log.seal("orders")
        fill(log, 3)
        killed_later = files_of(path)
    return {"closed": Directory(closed_earlier, files_of(path)), "killed": Directory(killed_earlier, killed_later)}


def fill(log: Log, turn: int) -> None:
    """One of everything that a log keeps."""
    orders = log.topic("orders", partitions=2)
    for number in range(4):
        orders.append(b"order %d %d" % (turn, number), key=b"k%d" % number, headers={"turn": b"%d" % turn})
    orders.append(b"once", idempotency_key=f"once {turn}")
    log.topic("rows", schema=SCHEMA).append([row(turn * 10 + number) for number in range(10)])
    with log.transaction() as change:
        change.append("orders", b"together %d" % turn)
        change.put(log.space("settings"), b"turn", b"%d" % turn)
    log.producer("device").append("orders", b"numbered %d" % turn, sequence=turn + 1)
    with orders.consumer("billing") as consumer:
        consumer.poll(3)
        consumer.commit()
    with log.execution("work", id=holdfast.execution_id("work", str(turn))) as program:
        program.set_result(program.step("double", int.__mul__, turn, 2))
    orders.append(b"last %d" % turn)


def files_of(path: Path) -> Objects:
    """All files but those that are made anew; a socket is none."""
    return {name: data for name, data in objects_of(path).items() if Path(name).name not in LEFT_OUT}


def lay_out(objects: Objects, path: Path) -> None:
    """Put files into a directory, as private as a log's are."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700)
    for name, data in objects.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        file.chmod(0o600)


def spoil(chance: Random, directory: Directory) -> Mutation:
    """One file of the present state, changed."""
    name = chance.choice(list(directory.later))
    made = chance.choice(WAYS)(chance, directory, name)
    made.kind = name.partition("/")[0]
    return made


def _flip(chance: Random, directory: Directory, name: str) -> Mutation:
    return Mutation("", "flip", name, {name: flipped(chance, directory.later[name])})


def _overwrite(chance: Random, directory: Directory, name: str) -> Mutation:
    """A stretch of the file, replaced by other bytes of this log: what an attacker without keys copies."""
    data, source = bytearray(directory.later[name]), directory.later[chance.choice(list(directory.later))]
    size, at = chance.choice((16, 512, 4096)), chance.randrange(max(1, len(data)))
    start = chance.randrange(max(1, len(source)))
    data[at : at + size] = source[start : start + size]
    return Mutation("", "overwrite", name, {name: bytes(data)})


def _cut(chance: Random, directory: Directory, name: str) -> Mutation:
    data = directory.later[name]
    return Mutation("", "cut", name, {name: data[: chance.randrange(len(data) + 1)]})


def _remove(chance: Random, directory: Directory, name: str) -> Mutation:
    return Mutation("", "remove", name, {name: None})


def _swap(chance: Random, directory: Directory, name: str) -> Mutation:
    return Mutation("", "swap", name, {name: directory.later[chance.choice(list(directory.later))]})


def _put_back(chance: Random, directory: Directory, name: str) -> Mutation:
    """What it was before, or nothing where it was not."""
    return Mutation("", "put back", name, {name: directory.earlier.get(name)})


def _put_back_folder(chance: Random, directory: Directory, name: str) -> Mutation:
    """A whole folder as it was before, all else as it is."""
    folder = name.partition("/")[0]
    names = {one for one in (*directory.later, *directory.earlier) if one.partition("/")[0] == folder}
    return Mutation("", "put back all", folder, {one: directory.earlier.get(one) for one in names})


def _special(chance: Random, directory: Directory, name: str) -> Mutation:
    return Mutation("", "special", name, {name: None}, chance.choice(SPECIALS))


Way = Callable[[Random, Directory, str], Mutation]
WAYS: tuple[Way, ...] = (
    _flip, _flip, _overwrite, _overwrite, _cut, _remove, _swap, _put_back, _put_back_folder, _special,
)  # fmt: skip
