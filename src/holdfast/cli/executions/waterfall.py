"""A waterfall: steps one below the other, each with a bar where it happened. Pure: steps and a width in, lines out.

    █ ran   ▒ failed, in the end   ░ waits, or nobody knows   ─ the span of a scope   ▲ a process began or went on

Every bar is at least one cell wide, so a step of a microsecond is seen beside a wait of days. Names are cut in the
middle where there is no room for them; bars never are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.cli.executions.durations import spoken
from holdfast.errors import printable
from holdfast.execution.work.execution_views import ExecutionDetails, StepDetails

_BARS = {"done": "█", "failed": "▒"}
_OPEN = "░"
_NAME_MIN, _NAME_PART, _NOTES_PART = 12, 0.28, 0.21
_TOOK_MIN = 8
_WIDTH_MIN = 40


class _Line(NamedTuple):
    """One row of the picture."""

    name: str
    start_us: int
    end_us: int
    bar: str
    took: str
    notes: str


def waterfall(details: ExecutionDetails, width: int, now_us: int) -> list[str]:
    """The picture of an execution, in lines of at most `width` characters."""
    width = max(width, _WIDTH_MIN)
    lines = list(_lines(details.steps, now_us))
    opened = [event.at_us for event in details.events if event.what == "opened"]
    times = [time for line in lines for time in (line.start_us, line.end_us)] + opened
    first, last = min(times, default=0), max(times, default=0)
    name_width = min(max([len(line.name) for line in lines] + [_NAME_MIN]), int(width * _NAME_PART))
    notes_width = min(max([len(line.notes) for line in lines] + [0]), int(width * _NOTES_PART))
    took_width = max([len(line.took) for line in lines] + [_TOOK_MIN])
    bar_width = max(1, width - name_width - took_width - notes_width - 5)
    canvas = _Canvas(first, last, bar_width)
    picture = [f"{'':{name_width}}  {canvas.axis()}", f"{'':{name_width}}  {canvas.marks(opened)}".rstrip()]
    for line in lines:
        bar = canvas.bar(line.start_us, line.end_us, line.bar)
        notes = line.notes if len(line.notes) <= notes_width else line.notes[: notes_width - 1] + "…"
        picture.append(
            f"{_cut(line.name, name_width):<{name_width}}  {bar} {line.took:>{took_width}}  {notes}".rstrip()
        )
    return [line for line in picture if line.strip()]


class _Canvas:
    """Where a time lies among so many cells."""

    def __init__(self, first_us: int, last_us: int, width: int) -> None:
        self._first = first_us
        self._span = max(1, last_us - first_us)
        self._width = width

    def axis(self) -> str:
        """The beginning, the middle, the end."""
        middle, end = spoken(self._span // 2), spoken(self._span)
        if len(middle) + 2 * len(end) + 8 > self._width:
            return f"0{end:>{self._width - 1}}"
        left = f"0{middle:>{self._width // 2 + len(middle) // 2 - 1}}"
        return f"{left}{end:>{self._width - len(left)}}"

    def marks(self, times: Iterable[int]) -> str:
        """A mark at each of these times."""
        cells = [" "] * self._width
        for time in times:
            cells[self._cell(time)] = "▲"
        return "".join(cells)

    def bar(self, start_us: int, end_us: int, mark: str) -> str:
        """A bar from one time to another."""
        start, end = self._cell(start_us), self._cell(end_us)
        return (" " * start + mark * (end - start + 1)).ljust(self._width)

    def _cell(self, time_us: int) -> int:
        return min(self._width - 1, max(0, (time_us - self._first) * self._width // self._span))


def _lines(steps: Sequence[StepDetails], now_us: int) -> Iterable[_Line]:
    """A line for each step, under the scopes that it stands in; below each other what belongs together."""
    spans = _scopes(steps, now_us)
    shown: set[str] = {step.path for step in steps}
    for step in _in_tree_order(steps):
        for scope in _parents(step.path):
            if scope not in shown:
                shown.add(scope)
                start, end = spans[scope]
                yield _Line(_name(scope), start, end, "─", spoken(end - start), "")
        start, end = _span(step, now_us)
        took = spoken(end - start) if step.ended_us else step.state
        yield _Line(_name(step.path), start, end, _BARS.get(step.state, _OPEN), took, ", ".join(_notes(step)))


def _in_tree_order(steps: Sequence[StepDetails]) -> list[StepDetails]:
    """Steps of one scope follow each other, scopes in the order of their first step."""
    order: dict[str, int] = {}
    for step in steps:
        for path in (*_parents(step.path), step.path):
            order.setdefault(path, len(order))
    return sorted(steps, key=lambda step: [order[path] for path in (*_parents(step.path), step.path)])


def _scopes(steps: Sequence[StepDetails], now_us: int) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for step in steps:
        start, end = _span(step, now_us)
        for scope in _parents(step.path):
            first, last = found.get(scope, (start, end))
            found[scope] = min(first, start), max(last, end)
    return found


def _span(step: StepDetails, now_us: int) -> tuple[int, int]:
    end = step.ended_us or max(now_us, step.started_us)
    return min(step.started_us or end, end), end


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _name(path: str) -> str:
    return "  " * path.count("/") + printable(path.rpartition("/")[2])


def _notes(step: StepDetails) -> Iterable[str]:
    """What is worth a word beside the bar."""
    if step.what != "step":
        yield step.what
    if step.state == "failed":
        yield "failed"
    yield from (f"ambiguous: {printable(policy)}" for policy in step.ambiguous)
    if step.effect == "exactly_once_guarded" and not step.ambiguous:
        yield "guarded"
    if step.attempts > 1:
        yield f"{step.attempts} tries"


def _cut(text: str, width: int) -> str:
    """Text that is too long without its middle."""
    if len(text) <= width:
        return text
    left = width // 2
    right = width - 1 - left
    return text[:left] + "…" + (text[-right:] if right else "")
