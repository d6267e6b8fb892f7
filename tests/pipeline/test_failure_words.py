"""Why a table failed: the error itself, where it was raised in the user's file, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import Corrupt, Invalid
from holdfast.store.port import StoreUnavailable
from pyspark_holdfast.pipeline.reports.failure_words import explain

pytestmark = pytest.mark.unit

OF_A_FUNCTION = """
  An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/srv/venv/lib/python3.11/site-packages/pyspark/worker.py", line 1942, in process
    serializer.dump_stream(out_iter, outfile)
  File "/srv/shop.py", line 7, in cents
    raise ValueError("no amount: twelve")
ValueError: no amount: twelve
"""
OF_OURS = """An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/srv/venv/lib/python3.11/site-packages/pyspark_holdfast/error_reports.py", line 53, in each_in_short
    raise _short(error, owner) from None
holdfast.errors.Corrupt: a segment is missing path=topics/orders/0/segments/1.parquet
hint: `holdfast reconcile DIR --remote` brings it back
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1097)
"""
OF_SPARK = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `amout` cannot be resolved. SQLSTATE: 42703;
'Project ['amout]
+- Relation [offset#24L,time#25] parquet
"""


class PythonException(Exception):
    """As Spark raises it on the driver."""


def test_an_error_of_ours_keeps_its_kind_and_hint() -> None:
    """Raised here, or in a worker and wrapped by Spark; a narrower kind has its documented name."""
    assert explain(Invalid("wrong column", hint="choose another")) == ("wrong column", "Invalid", "choose another")
    assert explain(StoreUnavailable("away", hint="wait")).kind == "Unavailable"
    words = explain(PythonException(OF_OURS))
    assert words.kind == Corrupt.__name__
    assert words.error == "a segment is missing path=topics/orders/0/segments/1.parquet"
    assert words.hint == "`holdfast reconcile DIR --remote` brings it back"


def test_an_error_of_a_function_in_a_worker_is_reported_with_its_line() -> None:
    """And without Spark's frames and Java's."""
    assert explain(PythonException(OF_A_FUNCTION)) == ("ValueError: no amount: twelve (shop.py:7)", "ValueError", "")


def test_an_error_of_a_function_on_the_driver_is_reported_with_its_line(tmp_path: Path) -> None:
    """The last line that is the user's own."""
    path = tmp_path / "shop.py"
    path.write_text("def revenue():\n    return {}['amount']\n")
    space: dict[str, object] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    with pytest.raises(KeyError) as raised:
        space["revenue"]()  # type: ignore[operator]
    assert explain(raised.value) == ("KeyError: 'amount' (shop.py:2)", "KeyError", "")


def test_an_error_of_sparks_is_its_first_sentence() -> None:
    """Without the plan."""
    words = explain(PythonException(OF_SPARK))
    assert words.error.endswith("A column with name `amout` cannot be resolved.")
    assert "Project" not in words.error


@pytest.mark.parametrize("text", ["", "\n\n", "x" * 100_000])
def test_any_text_is_bounded(text: str) -> None:
    """Also none."""
    assert 0 < len(explain(ValueError(text)).error) <= 4000
