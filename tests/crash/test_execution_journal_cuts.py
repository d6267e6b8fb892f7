"""The power fails at any step of an execution's life: begun, written, folded, ended, pruned.

Afterwards its journal is proved, has no gap, has everything that was acknowledged, once and in order, and its row says
what its entries say. Folding and pruning are there whole or not at all.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

import holdfast
from holdfast import Settings
from holdfast.execution.journal.entries import ENDED, Ended, StepResult
from holdfast.execution.journal.execution_id import derived_id
from holdfast.execution.journal.execution_record import in_order
from holdfast.execution.journal.folding import unfolded
from holdfast.testing import ManualClock
from tests.executions.by_hand import append, finish, fold_now, opened, release
from tests.harness.cuts import Cut, examine, record, without_syncs

pytestmark = pytest.mark.crash

SETTINGS = Settings.from_mapping({"segments": {"seal_on_close": False}})
IDS = [derived_id("cuts", str(number)) for number in range(2)]


class Promised:
    """What was acknowledged so far."""

    def __init__(self) -> None:
        self.acked: dict[UUID, list[str]] = {}
        self.ended: set[UUID] = set()
        self.pruning = False

    def now(self) -> tuple[dict[UUID, list[str]], set[UUID], bool]:
        return {execution: list(paths) for execution, paths in self.acked.items()}, set(self.ended), self.pruning


def lead(path: Path, promised: Promised) -> None:
    """Two lives, side by side, in two openings of the log."""
    clock = ManualClock(seed=3)
    for opening in range(2):
        with holdfast.open(path, settings=SETTINGS, clock=clock) as log:
            for execution in IDS:
                opened(log, "cut", execution)
                promised.acked.setdefault(execution, [])
            for number in range(4):
                for execution in IDS:
                    name = f"{opening}-{number}"
                    append(log, execution, StepResult(name, name.encode().ljust(32), "idempotent", b"v", 1))
                    promised.acked[execution].append(name)
            fold_now(log, IDS[0])
            for execution in IDS:
                release(log, execution)
    with holdfast.open(path, settings=SETTINGS, clock=clock) as log:
        opened(log, "cut", IDS[1])
        finish(log, IDS[1], "completed")
        promised.ended.add(IDS[1])
        clock.advance(8 * 86_400)
        promised.pruning = True
        assert log.executions.prune() == 1


def look(copy: Path, promise: tuple[dict[UUID, list[str]], set[UUID], bool]) -> None:
    acked, ended, pruning = promise
    with holdfast.open(copy / "log", settings=SETTINGS, clock=ManualClock(seed=4)) as log:
        store = log._executions.room().store
        for execution in IDS:
            row = store.rows.get(execution)
            entries = list(unfolded(in_order(store.load(execution)[0])))
            if row is None:  # not begun, or pruned as a whole
                assert not entries
                assert not acked.get(execution) or (pruning and execution in ended)
                continue
            found = [entry.path for entry in entries if isinstance(entry, StepResult)]
            known = acked.get(execution, [])
            assert found[: len(known)] == known
            assert len(found) == len(set(found)) <= len(known) + 1
            assert (row.status in ENDED) == any(isinstance(entry, Ended) for entry in entries)
            assert execution not in ended or row.status == "completed"


def life(root: Path) -> list[Cut[tuple[dict[UUID, list[str]], set[UUID], bool]]]:
    promised = Promised()
    return record(root, lambda disk: lead(root / "log", promised), promised.now)


def test_every_state_after_a_cut_has_whole_executions(tmp_path, some, is_sampled):
    """Cuts at sampled steps; script/test full takes more of them."""
    cuts = life(tmp_path / "disk")
    sample = [*some(cuts[:-1], 14, full=60), cuts[-1]]
    assert examine(sample, look, tmp_path / "states", 2) >= len(sample)


def test_a_journal_that_is_not_synced_is_noticed(tmp_path):
    """The same examination fails if nothing is synced."""
    with without_syncs():
        cuts = life(tmp_path / "disk")
    with pytest.raises(AssertionError):
        examine(reversed(cuts), look, tmp_path / "states", 2)
