"""The timeline in a terminal: every line fits, every step is seen, nothing that a terminal would act on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.executions.durations import spoken
from holdfast.cli.executions.waterfall import waterfall
from holdfast.execution.journal.entries import EffectIntent, ExecutionRow, Opened, PromiseCreated, StepResult
from holdfast.execution.work.execution_views import ExecutionDetails, details

pytestmark = pytest.mark.unit

ROW = ExecutionRow(b"\x00" * 16, "import", "running", 0, 0)
S = 1_000_000


def ran(path: str, start: float, end: float, **more: object) -> StepResult:
    return StepResult(path, b"k", "idempotent", b"", int(end * S), int(start * S) or 1, **more)  # type: ignore[arg-type]


def drawn(*entries: object) -> ExecutionDetails:
    return details(ROW, entries, reveal=False)  # type: ignore[arg-type]


def test_a_timeline_reads_as_one():
    """Bars stand where things happened, scopes above what is in them, words where bars do not say enough."""
    picture = waterfall(
        drawn(
            Opened(1, 0),
            ran("fetch", 0, 1),
            ran("rows/a", 1, 2),
            ran("rows/b", 1, 3, attempts=3),
            Opened(2, 4 * S),
            ran("charge", 4, 8, is_error=True),
            EffectIntent("ship", b"k", "exactly_once_guarded", 8 * S),
            PromiseCreated("approval", b"p", b"h", 8 * S),
        ),
        60,
        10 * S,
    )
    assert picture == [
        "              0          5.00 s    10.00 s",
        "              ▲          ▲",
        "fetch         ███                            999 ms",
        "rows            ───────                      2.00 s",
        "  a             ████                         1.00 s",
        "  b             ███████                      2.00 s  3 tries",
        "charge                   ▒▒▒▒▒▒▒▒▒▒▒▒        4.00 s  failed",
        "ship                                ░░░░░░    begun  guarded",
        "approval                            ░░░░░░  waiting  promise",
    ]


@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=40), st.integers(0, 10**15), st.integers(0, 10**13), st.booleans()),
        max_size=12,
    ),
    st.integers(1, 200),
)
def test_no_timeline_is_wider_than_its_terminal(steps, width):
    """Whatever names and times there are: lines fit, print, and there is one for each step."""
    shown = drawn(*(StepResult(p, b"k", "idempotent", b"", a + b, a, 1, e) for p, a, b, e in steps))
    picture = waterfall(shown, width, 10**15)
    assert len([line for line in picture if "█" in line or "▒" in line]) >= len(shown.steps)
    for line in picture:
        assert len(line) <= max(width, 40)
        assert line.isprintable()


def test_lengths_of_time_are_spoken():
    """In the two units that matter."""
    lengths = (0, 750, 41_200, 2_340_000, 75 * S, 9_000 * S, 200_000 * S)
    assert [spoken(one) for one in lengths] == [
        "0 ms",
        "0.75 ms",
        "41 ms",
        "2.34 s",
        "1 min 15 s",
        "2 h 30 min",
        "2 d 7 h",
    ]
