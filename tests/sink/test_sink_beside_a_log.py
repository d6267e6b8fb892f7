"""What a sink wrote, met by all who work on the same root: its owner, compaction, publication, retention, restore."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import deltalake
import pytest

import holdfast
from holdfast import Invalid
from holdfast.clock import SystemClock
from holdfast.root.objects.documents import RetentionLimits
from holdfast.root.rewrite_sweep import Grace
from holdfast.sink.sink_retention import SinkRetention
from holdfast.sink.sink_root import open_root
from holdfast.sink.sink_target import SinkTarget
from holdfast.store import layout
from tests.sink.sinks import CLOCK, ROWS, TASKS, write

pytestmark = pytest.mark.store

WHOLE = sum(TASKS.values())


def counted(root: Path) -> Counter[tuple[str, int]]:
    rows = holdfast.read(str(root), "t").to_arrow().select(ROWS.names).to_pylist()
    return Counter((row["writer"], row["batch"]) for row in rows)


def test_a_sinks_topic_among_all_who_work_on_a_root(tmp_path: Path) -> None:
    """Nobody damages it, nobody adopts it, and it goes on afterwards."""
    root, target = tmp_path / "root", SinkTarget(place=str(tmp_path / "root"), topic="t")
    with holdfast.open(tmp_path / "log", store=root) as log:
        log.topic("orders").append(b"1", durability="shipped")
        for batch in range(3):
            write(target, "q", batch)
        with pytest.raises(Invalid, match="a sink writes topic 't'"):
            log.topic("t")
        with pytest.raises(Invalid, match="belongs to the log"):
            write(SinkTarget(place=str(root), topic="orders"), "q", 0)
        assert log.reconcile(remote=True, deep=True, fix=True).clean
        assert holdfast.compact(str(root), "t").files_after == 2
        (report,) = holdfast.publish_tables(str(root), ["t"])
        assert (report.state, report.rows) == ("published", 3 * WHOLE)
        write(target, "q", 3)
        assert not write(target, "q", 2).is_new
        assert log.reconcile(remote=True, deep=True).clean
        log.topic("orders").append(b"2", durability="shipped")
    restored = holdfast.restore(str(root), tmp_path / "again")
    assert (restored.records, restored.sink_topics) == (2, ("t",))
    write(target, "q", 4)
    assert counted(root) == Counter({("q", batch): WHOLE for batch in range(5)})
    holdfast.publish_tables(str(root), ["t"])
    table = deltalake.DeltaTable(str(root / layout.table_folder("t"))).to_pyarrow_table()
    assert table.num_rows == 5 * WHOLE
    retention = SinkRetention(open_root(target, CLOCK).store, SystemClock(), Grace(0, 0))
    retention.set_policy("t", RetentionLimits(0, 0, 1))
    retention.apply(*retention.topics())
    write(target, "q", 5)
    assert counted(root)[("q", 5)] == WHOLE
    assert not counted(root)[("q", 0)]
    assert not write(target, "q", 0).is_new, "marks outlive what they speak of"
