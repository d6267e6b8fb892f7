"""Executions of a log that was restored: made again of what was shipped, or refused where a part is missing."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from blake3 import blake3

import holdfast
from holdfast import Corrupt, Log, Settings
from holdfast.errors import ExecutionCanceled
from holdfast.execution.journal import rebuilding
from holdfast.execution.journal.execution_id import derived_id
from holdfast.execution.steps.claim_check import fetched, put_aside
from holdfast.journal.journal import Run
from holdfast.journal.space_access import SpaceAccess
from holdfast.log.topics.topic import Topic
from holdfast.model.record_columns import Columns
from tests.executions.by_hand import append, entries, finish, fold_now, opened, release, steps
from tests.executions.test_live_journal import begin, result
from tests.executions.test_tampered_journals import QUIET
from tests.executions.waiting_room import room_of

pytestmark = pytest.mark.disk


def populated(log: Log) -> dict[str, UUID]:
    """Executions in all states: running, ended, canceled, folded, rewound, pruned."""
    names = ("running", "completed", "canceled", "folded", "rewound", "pruned")
    ids = {name: opened(log) for name in names}
    for name, execution in ids.items():
        for number in range(4):
            append(log, execution, result(f"{name}-{number}"))
    live = room_of(log).live.get(ids["running"])
    _, operations, size = put_aside(log._journal, live.id, "large", bytes(3_000_000))
    live.store.write(live.journal, result("large"), operations, size=size).result()
    finish(log, ids["completed"], "completed")
    finish(log, ids["canceled"], "canceled")
    fold_now(log, ids["folded"])
    append(log, ids["folded"], result("behind"))
    release(log, ids["rewound"])
    log.executions.rewind(ids["rewound"], before="rewound-2")
    finish(log, ids["pruned"], "completed")
    row = room_of(log).store.rows[ids["pruned"]]
    room_of(log).pruning._remove([row])[1].result()
    return ids


def state(log: Log) -> dict[str, object]:
    """All that is kept of executions."""
    rows = room_of(log).store.rows.copy()
    return {str(execution): (row, entries(log, execution)) for execution, row in sorted(rows.items())}


@pytest.mark.parametrize("keyed", [False, True])
def test_restore_brings_executions_back_as_they_were(tmp_path, keyring, keyed):
    """From a store: rows, results, folded and rewound pasts, values kept by reference; what was pruned stays away."""
    ring = keyring if keyed else None
    store = f"file://{tmp_path / 'store'}"
    with holdfast.open(tmp_path / "log", store=store, settings=QUIET, keyring=ring) as log:
        ids = populated(log)
        before = state(log)
        log.ship()
    holdfast.restore(store, tmp_path / "restored", keyring=ring)
    with holdfast.open(tmp_path / "restored", store=store, settings=QUIET, keyring=ring) as log:
        assert not [name for name in log._journal.spaces.names() if name.startswith("execution")]
        assert state(log) == before
        assert str(ids["pruned"]) not in before
        reference = blake3(bytes(3_000_000)).digest() + (3_000_000).to_bytes(8, "big")
        assert fetched(log._journal, ids["running"], "large", reference) == bytes(3_000_000)
        live = begin(log, ids["running"])
        assert live.resumed
        assert live.look("running-3").result is not None
        live.write(result("later")).result()
        with pytest.raises(ExecutionCanceled):
            begin(log, ids["canceled"])
    with holdfast.open(tmp_path / "restored", store=store, settings=QUIET, keyring=ring) as log:
        assert steps(log, ids["running"])[-1] == "later"


def test_a_rebuild_that_was_interrupted_is_done_again(tmp_path, monkeypatch):
    """It dies at any of its commits, again and again; in the end everything is there, once."""
    store = f"file://{tmp_path / 'store'}"
    with holdfast.open(tmp_path / "log", store=store, settings=QUIET) as log:
        populated(log)
        before = state(log)
        log.ship()
    monkeypatch.setattr(rebuilding, "_COMMIT_BYTES", 150)  # an index of several commits
    holdfast.restore(store, tmp_path / "whole", copy=True)
    commits = _rebuilt(tmp_path / "whole", monkeypatch, 1_000)
    assert commits > 15
    holdfast.restore(store, tmp_path / "restored", copy=True)
    for most in (0, 1, commits // 2, *range(commits - 6, commits)):
        with pytest.raises(KeyboardInterrupt):
            _rebuilt(tmp_path / "restored", monkeypatch, most)
    _rebuilt(tmp_path / "restored", monkeypatch, 1_000)
    for copy in ("whole", "restored"):
        with holdfast.open(tmp_path / copy, settings=QUIET) as log:
            assert state(log) == before


def _rebuilt(path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> int:
    """Rebuild until so many changes are done; how many there were."""
    done: list[None] = []
    change = SpaceAccess.change

    def dies(self, *given, **options):
        if len(done) >= most:
            raise KeyboardInterrupt
        done.append(None)
        return change(self, *given, **options)

    with monkeypatch.context() as patched, holdfast.open(path, settings=QUIET) as log:
        patched.setattr(SpaceAccess, "change", dies)
        room_of(log)
    return len(done)


def test_a_journal_that_is_not_complete_is_refused(tmp_path):
    """What has expired in `_executions` is not made up: the row is there, and going on says what is missing."""
    settings = Settings.from_mapping({"segments": {"rows_max": 3}})
    with holdfast.open(tmp_path / "log", settings=settings) as log:
        execution = opened(log)
        for number in range(20):
            append(log, execution, result(str(number)))
        log.seal()
        log.set_retention("_executions", records_max=5)
        log.retain()
        room_of(log).live.get(execution).finish("failed").result()
        other = opened(log)
        append(log, other, result("a"))
    with holdfast.open(tmp_path / "log", settings=settings) as log:  # as if it had been rebuilt
        for name in log._journal.spaces.names():
            log._journal.spaces.change(name, drop=True, timeout=5).result()
    with holdfast.open(tmp_path / "log", settings=settings) as log:
        assert steps(log, other) == ["a"]
        assert room_of(log).store.rows[execution].status == "failed"
        with pytest.raises(Corrupt, match="gap") as caught:
            begin(log, execution)
        assert "lost" in caught.value.hint


FORGED = derived_id("forged", "1")


def _forged_block(first: int, *entries: object, execution: bytes = FORGED.bytes) -> bytes:
    return msgspec.msgpack.encode([1, execution, first, entries])


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("status", b""),
        ("status", msgspec.msgpack.encode([b"short", "k", "running", 1, 1])),
        ("status", msgspec.msgpack.encode([bytes(16), "k", "running", 1, 1])),
        ("status", msgspec.msgpack.encode([FORGED.bytes, "k", "flying", 1, 1])),
        ("status", msgspec.msgpack.encode([FORGED.bytes, "k", "running", 2**63, 1])),
        ("entries", b"\xc1"),
        ("entries", _forged_block(0)),
        ("entries", _forged_block(-1, [13, 1, 1])),
        ("entries", _forged_block(2**63, [13, 1, 1])),
        ("entries", _forged_block(0, [13, 1, 1], execution=b"x")),
        ("folded", _forged_block(0, [13, 1, 1])),
        ("folded", _forged_block(2**62, [7, 2**62 + 1, 2**62 + 1, [], 1, 0])),
        ("folded", _forged_block(3, [7, 4, -5, [], 1, 0])),
        ("data", b"\xff"),
        ("data", msgspec.msgpack.encode(["../../executions", 0, b""])),
        ("data", msgspec.msgpack.encode([f"{FORGED}/x", 2**40, b""])),
    ],
)
def test_forged_records_end_with_an_error_and_soon(tmp_path, kind, payload):
    """A log without keys that was restored from somebody's store: no record hangs it, or is written where it wants."""
    with holdfast.open(tmp_path / "log", settings=QUIET) as log:
        log._executions._topics.own("_executions")
        partition = log._journal.topics["_executions"][0]
        columns = Columns([payload], [1], {0: (str(FORGED).encode(), kind.encode(), None)})
        log._journal.transact([Run.unplaced(partition, columns)], records=1, size=1000, timeout=5).result()
        with pytest.raises(Corrupt) as caught:
            room_of(log)
        assert "Traceback" not in str(caught.value)


def test_records_of_others_are_passed_over(tmp_path):
    """Somebody who took the topic for their own costs no execution."""
    with holdfast.open(tmp_path / "log", settings=QUIET) as log:
        topic = log._executions._topics.own("_executions")
        Topic.submit(topic, b"mine").result()
        Topic.submit(topic, b"\xff", key=b"\xff", kind="order").result()
        assert len(room_of(log).store.rows) == 0
        assert opened(log) in room_of(log).store.rows


def test_a_log_that_is_whole_is_not_rebuilt(tmp_path, monkeypatch):
    """Also when all its executions were pruned: its index is there, and empty."""
    with holdfast.open(tmp_path / "log", settings=QUIET) as log:
        execution = opened(log)
        finish(log, execution, "completed")
        room_of(log).pruning._remove([room_of(log).store.rows[execution]])[1].result()
    monkeypatch.setattr(rebuilding, "rebuild", lambda *_: pytest.fail("it was rebuilt"))
    with holdfast.open(tmp_path / "log", settings=QUIET) as log:
        assert len(room_of(log).store.rows) == 0


def test_the_topic_has_limits_of_its_own(tmp_path: Path):
    """Like `_channels`: bounded by default, and by its own policy where it has one."""
    defaults = Settings().executions
    assert (defaults.topic_bytes_max, defaults.topic_age_max_ms) == (2**30, 90 * 86_400_000)
    settings = Settings.from_mapping({"segments": {"rows_max": 3}, "executions": {"topic_bytes_max": 1000}})
    with holdfast.open(tmp_path / "log", settings=settings) as log:
        execution = opened(log)
        for number in range(20):
            append(log, execution, result(str(number), bytes(200)))
        log.seal()
        log.retain()
        assert len(list(log.topic("_executions").read())) < 10
        assert len(steps(log, execution)) == 20  # the journal itself is untouched
