"""The example of a declarative pipeline: what Spark's own tables hold is what the log holds, each run only adds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from examples import pipeline_orders
from examples.declarative.run import run, tables

from tests.spark.conftest import before

pytestmark = pytest.mark.spark


@pytest.mark.skipif(before(4, 1), reason="Spark 4.0 has no declarative pipelines")
@pytest.mark.timeout(900)
@pytest.mark.full("Spark starts twice, with a server of its own each time: a minute")
def test_a_declarative_pipeline_reads_every_change_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs by `spark-pipelines`, in a working directory that stays empty."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    run(tmp_path)
    made = tables(tmp_path)
    changes = [change for day in (0, 1) for change in pipeline_orders.changes(day)]
    assert Counter((row["order_id"], row["status"]) for row in made["order_changes"]) == Counter(
        (change["order_id"], change["status"]) for change in changes
    )
    paid: Counter[str] = Counter()
    for change in changes:
        if change["status"] == "paid":
            paid[change["country"]] += change["cents"]
    assert {row["country"]: row["cents"] for row in made["revenue_by_country"]} == paid
    assert len(made["largest_orders"]) == 5
    assert not list(here.iterdir())
