"""Arrays made of buffers are those that Arrow makes of the same values, and what comes back is what Arrow gives."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.model.arrow import plain_arrays

pytestmark = pytest.mark.unit

LEAVES = {
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.uint16(): st.integers(0, 2**16 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32) | st.integers(-(2**24), 2**24),
    pa.float64(): st.floats() | st.integers(-(2**53), 2**53),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=4),
    pa.large_string(): st.text(max_size=4),
    pa.binary(): st.binary(max_size=4),
    pa.large_binary(): st.binary(max_size=4),
    pa.timestamp("us", "Europe/Vienna"): st.datetimes(
        timezones=st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=5))])
    ),
    pa.timestamp("us"): st.datetimes(),
    pa.date32(): st.dates(),
    pa.time64("us"): st.times(),
    pa.duration("us"): st.timedeltas(dt.timedelta(-99999), dt.timedelta(99999)),
}  # fmt: skip


def kinds() -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[object]]]:
    def nested(inner):
        lists = inner.map(lambda pair: (pa.list_(pair[0]), st.lists(pair[1], max_size=3)))
        large = inner.map(lambda pair: (pa.large_list(pair[0]), st.lists(pair[1], max_size=3)))
        structs = inner.map(
            lambda pair: (
                pa.struct([("a", pair[0]), ("b", pa.int64())]),
                st.fixed_dictionaries({}, optional={"a": pair[1]}),
            )
        )
        return lists | large | structs

    leaves = st.sampled_from(list(LEAVES.items()))
    return st.recursive(leaves.map(lambda pair: (pair[0], st.none() | pair[1])), nested, max_leaves=2)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_the_array_is_the_one_that_arrow_makes(data):
    """For every type that is read here, with nulls anywhere."""
    kind, values = data.draw(kinds())
    rows = data.draw(st.lists(st.none() | values, max_size=6))
    found = plain_arrays.read(rows, kind)
    assert found is not None
    found.validate(full=True)
    wanted = pa.array(rows, kind)
    assert found.null_count == wanted.null_count
    assert repr(found.to_pylist()) == repr(wanted.to_pylist())


@settings(deadline=None)
@given(st.data())
def test_rows_come_back_as_arrow_gives_them(data):
    """Times with a zone, too, in all units that Python knows."""
    kinds_ = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us") for zone in ("UTC", "+05:30", "Europe/Vienna")]
    kind = data.draw(st.sampled_from([*kinds_, pa.int64(), pa.string()]))
    source = {pa.int64(): st.integers(-9, 9), pa.string(): st.text(max_size=3)}
    moments = st.integers(-(2**32), 2**32).map(lambda second: dt.datetime.fromtimestamp(second, dt.UTC))
    values = data.draw(st.lists(st.none() | source.get(kind, moments), min_size=1, max_size=5))
    batch = pa.record_batch({"a": pa.array(values, kind), "b": pa.array(range(len(values)))})
    for cut in (batch, batch.slice(1)):
        assert plain_arrays.rows(cut) == cut.to_pylist()
        assert repr(plain_arrays.rows(cut)) == repr(cut.to_pylist())


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2.0], pa.int64()),
        ([1, True], pa.int64()),
        ([b"bytes"], pa.string()),
        ([bytearray(b"x")], pa.binary()),
        ([dt.date(2020, 1, 1)], pa.timestamp("us")),
        ([{"a": 1}], pa.map_(pa.string(), pa.int64())),
        ([[1, "x"]], pa.list_(pa.int64())),
        ([{"a": b"x"}], pa.struct([("a", pa.string())])),
    ],
)
def test_anything_else_is_for_arrow(values, kind):
    """Where the class of a value is not exactly the expected one, nothing is guessed."""
    assert plain_arrays.read(values, kind) is None


@pytest.mark.disk
def test_no_pandas_in_the_whole_life_of_a_log():
    """Append, seal, ship, read, reconcile and restore, raw and typed, with keys and without: nobody loads pandas."""
    script = Path(__file__).parents[1] / "disk" / "life_without_pandas.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.returncode) == ("without pandas\n", 0), done.stderr
