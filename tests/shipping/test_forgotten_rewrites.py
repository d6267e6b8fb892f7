"""A compacted store that forgets: what is in long files is there, or put back with them, and never sent twice."""

from __future__ import annotations

import shutil

import pytest

import holdfast
from holdfast import Log, Settings
from holdfast.store import layout
from tests.rewriting import Compactor
from tests.segments.planting import TEN, fill, offsets
from tests.shipping.conftest import Root

pytestmark = pytest.mark.store

COUNT = 6
ALL = list(range(10 * COUNT))
NEVER = {"interval_ms": 3_600_000}


@pytest.fixture
def shipped(open_quiet) -> Log:
    log = open_quiet(segments=TEN, retention=NEVER)
    fill(log, "orders", COUNT)
    log.ship(20)
    return log


def read(root: Root) -> list[int]:
    found: list[int] = holdfast.read(root.url, "orders", columns=["offset"]).to_arrow()["offset"].to_pylist()
    return found


def test_an_owner_that_comes_back_does_not_send_replaced_files_again(shipped, open_quiet, root):
    """Even the newest segment, by which it looks at every claim, has no file of its own any more."""
    shipped.close()
    Compactor(root.store).rewrite((0, COUNT), remove=True)
    log = open_quiet(segments=TEN)
    fill(log, "orders", 1)
    log.ship(20)
    assert root.segments("orders") == [0, COUNT]
    assert log.rebuild_store().segments == 0
    assert root.segments("orders") == [0, COUNT]
    assert read(root) == list(range(10 * COUNT + 10))


def test_a_lost_long_file_whose_segments_are_here_is_left_to_reconciliation(shipped, open_quiet, root, lines):
    """Shipping goes on, and says what to do; nothing is called lost."""
    shipped.close()
    long = Compactor(root.store).rewrite((0, COUNT), remove=True).outputs[0].segment.key
    root.store.delete([long])
    log = open_quiet(segments=TEN)
    fill(log, "orders", 1)
    log.ship(20)
    assert lines("long_files_lost")
    assert log.rebuild_store().lost == ()
    assert log.reconcile(remote=True, fix=True).clean
    assert read(root) == list(range(10 * COUNT + 10))


def test_a_lost_long_file_that_nobody_else_has_is_lost(shipped, open_quiet, root):
    shipped.set_retention("orders", records_max=10)
    assert len(shipped.retain().removed) == COUNT - 1
    shipped.close()
    long = Compactor(root.store).rewrite((0, 4), remove=True).outputs[0].segment.key
    root.store.delete([long])
    log = open_quiet(segments=TEN)
    report = log.rebuild_store(accept_loss=True)
    assert [(span.first, span.records) for span in report.lost] == [(0, 40)]
    assert read(root) == ALL[40:]


def test_a_store_that_lost_everything_is_filled_again_from_long_files(shipped, open_quiet, root, tmp_path):
    """A log that was restored from a compacted store has no other files: they are put back with their rewrites."""
    shipped.close()
    shutil.rmtree(shipped.path)
    compactor = Compactor(root.store)
    compactor.rewrite((1, 3), remove=True)
    compactor.rewrite((0, 5), remove=True)
    holdfast.restore(root.url, tmp_path / "back", settings=Settings.from_mapping({}))
    log = open_quiet("back", segments=TEN)
    fill(log, "orders", 1)
    log.ship(20)
    root.store.delete(root.keys())
    report = log.rebuild_store()
    assert report.lost == ()
    fill(log, "orders", 1)
    log.ship(20)
    assert read(root) == list(range(10 * COUNT + 20))
    assert root.segments("orders") == [0, 5, 6, 7]
    assert log.reconcile(remote=True, deep=True).clean
    log.close()
    holdfast.restore(root.url, tmp_path / "again", settings=Settings.from_mapping({}))
    with holdfast.open(tmp_path / "again") as again:
        assert offsets(again.topic("orders")) == list(range(10 * COUNT + 20))


def test_rewrites_that_were_lost_are_put_back(shipped, open_quiet, root, tmp_path):
    """An older copy of the store came back: the long files are there, and nothing that says so."""
    shipped.close()
    shutil.rmtree(shipped.path)
    Compactor(root.store).rewrite((0, 5), remove=True)
    holdfast.restore(root.url, tmp_path / "back", settings=Settings.from_mapping({}))
    root.store.delete(root.keys(layout.rewrites_folder("orders", 0)))
    log = open_quiet("back", segments=TEN)
    log.rebuild_store()
    assert read(root) == ALL
    assert log.reconcile(remote=True, deep=True).clean
