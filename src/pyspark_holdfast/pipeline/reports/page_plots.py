"""Plots over runs, as SVG that stands in the page. Pure: numbers in, text out.

One column per run; where there are more runs than columns, neighbours share one. Colours are the page's (`page_style`),
so plots are light and dark with it. Each plot says in words what it shows, for who cannot see it, and each column shows
its numbers under the pointer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyspark_holdfast.pipeline.reports.page_words import day_or_hour, moment, text

WIDTH, HEIGHT = 320, 110
_LEFT, _RIGHT, _TOP, _BOTTOM = 2, 318, 16, 86
_COLUMNS_MAX = 72
_COLUMN_MAX = 16.0
"""How wide one column is drawn at most: a single run is no wall, though all the width is its place."""
_LABEL = 70.0
"""More than a time below the axis takes."""

VALUE_MAX = 1e18
"""What is plotted at most: reports may say anything."""


class Sample(NamedTuple):
    """One run, or several neighbours."""

    at_ms: int
    values: tuple[float, ...]
    runs: int = 1
    is_bad: bool = False


class Series(NamedTuple):
    """One of the values that a plot shows."""

    name: str
    style: str
    """A class of the page's style."""


def sample(at_ms: int, *values: float, is_bad: bool) -> Sample:
    """One run; values that cannot be are as near as they can be."""
    return Sample(at_ms, tuple(min(max(0.0, value), VALUE_MAX) for value in values), 1, is_bad)


def gathered(samples: Sequence[Sample], together: Callable[[Sequence[float]], float]) -> list[Sample]:
    """So few samples that each has a column: neighbours are put together."""
    each = -(-len(samples) // _COLUMNS_MAX) or 1
    groups = [samples[start : start + each] for start in range(0, len(samples), each)]
    return [
        Sample(
            group[-1].at_ms,
            tuple(together(values) for values in zip(*(one.values for one in group), strict=True)),
            sum(one.runs for one in group),
            any(one.is_bad for one in group),
        )
        for group in groups
    ]


def bars(title: str, samples: Sequence[Sample], series: Sequence[Series], show: Callable[[float], str]) -> str:
    """Columns, one series before the other, the later ones narrower."""
    highest = _highest(samples)
    step = _step(samples)
    parts = []
    for number, one in enumerate(series):
        share = 0.84 - 0.36 * number
        path = "".join(
            _bar(_middle(index, step), share * min(step, _COLUMN_MAX), _height(sample.values[number], highest))
            for index, sample in enumerate(samples)
            if sample.values[number] > 0
        )
        parts.append(f'<path class="{one.style}" d="{path}"/>' if path else "")
    return _plot(title, samples, series, show, "".join(parts))


def line(title: str, samples: Sequence[Sample], series: Series, show: Callable[[float], str]) -> str:
    """One line, with what is below it."""
    highest = _highest(samples)
    step = _step(samples)
    points = [(_middle(index, step), _BOTTOM - _height(one.values[0], highest)) for index, one in enumerate(samples)]
    drawn = ""
    if points:
        way = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        below = f"{points[0][0]:.1f},{_BOTTOM} {way} {points[-1][0]:.1f},{_BOTTOM}"
        x, y = points[-1]
        if len(points) == 1:  # a line of one point cannot be seen
            way = f"{x:.1f},{_BOTTOM} {way}"
        drawn = (
            f'<polygon class="{series.style} area" points="{below}"/><polyline class="{series.style} line" '
            f'points="{way}"/><circle class="{series.style} dot" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>'
        )
    return _plot(title, samples, [series], show, drawn)


def spark(label: str, values: Sequence[float]) -> str:
    """A plot of a word's size."""
    shown = gathered([sample(0, value, is_bad=False) for value in values], max)[-24:]
    highest, step = _highest(shown), 74 / max(1, len(shown))
    path = "".join(
        f"M{(index + 0.5) * step - 1:.1f} 20v{-max(1.0, 18 * one.values[0] / (highest or 1)):.1f}h2V20z"
        for index, one in enumerate(shown)
        if one.values[0] > 0
    )
    return (
        f'<svg class="spark" viewBox="0 0 74 21" width="74" height="21" role="img" aria-label="{text(label)}">'
        f'<path class="rule" d="M0 20.5H74"/><path class="out" d="{path}"/></svg>'
    )


# -- what all have ----------------------------------------------------------------------------------------------


def _plot(
    title: str, samples: Sequence[Sample], series: Sequence[Series], show: Callable[[float], str], drawn: str
) -> str:
    step, highest = _step(samples), _highest(samples)
    top = f'<text class="tick" x="0" y="{_TOP - 4}">{text(show(highest))}</text>' if highest > 0 else ""
    summary = text(_summary(title, samples, series, show))
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{summary}">'
        f'<path class="rule" d="M0 {_BOTTOM + 0.5}H{WIDTH}"/><path class="rule faint" d="M0 {_TOP + 0.5}H{WIDTH}"/>'
        f"{top}{drawn}{_failures(samples, step)}{_ends(samples, step)}"
        f"{''.join(_hover(one, index, step, series, show) for index, one in enumerate(samples))}</svg>"
    )


def _summary(title: str, samples: Sequence[Sample], series: Sequence[Series], show: Callable[[float], str]) -> str:
    if not samples:
        return f"{title}: no runs yet"
    runs = sum(one.runs for one in samples)
    said = [
        f"{one.name} last {show(samples[-1].values[number])}, most {show(max(s.values[number] for s in samples))}"
        for number, one in enumerate(series)
    ]
    failed = sum(one.is_bad for one in samples)
    tail = f"; failures at {failed} of {len(samples)} columns" if failed else ""
    return f"{title} over {runs} runs: {'; '.join(said)}{tail}"


def _hover(one: Sample, index: int, step: float, series: Sequence[Series], show: Callable[[float], str]) -> str:
    """A column that tells its numbers; it is as wide as the place that it has."""
    said = ", ".join(f"{s.name} {show(value)}" for s, value in zip(series, one.values, strict=True))
    runs = f", {one.runs} runs" if one.runs > 1 else ""
    failed = ", failed" if one.is_bad else ""
    return (
        f'<rect class="hover" x="{_LEFT + index * step:.1f}" y="{_TOP}" width="{step:.1f}" height="{_BOTTOM - _TOP}">'
        f"<title>{text(f'{moment(one.at_ms)} UTC: {said}{failed}{runs}')}</title></rect>"
    )


def _failures(samples: Sequence[Sample], step: float) -> str:
    path = "".join(
        f"M{_middle(index, step) - 2.5:.1f} {_BOTTOM + 3}h5l-2.5 4z" for index, one in enumerate(samples) if one.is_bad
    )
    return f'<path class="bad" d="{path}"/>' if path else ""


def _ends(samples: Sequence[Sample], step: float) -> str:
    """The times of the first and the last column, below them."""
    if not samples:
        return f'<text class="tick" x="0" y="{HEIGHT - 4}">no runs yet</text>'
    first, last = samples[0].at_ms, samples[-1].at_ms
    begin = _time_below(_middle(0, step), day_or_hour(first, last - first))
    if len(samples) == 1:
        return begin
    return begin + _time_below(_middle(len(samples) - 1, step), day_or_hour(last, last - first))


def _time_below(x: float, time: str) -> str:
    """A time, centred below its column; at an edge of the plot it stays inside."""
    if x < _LABEL / 2:
        x, anchor = 0, "start"
    elif x > WIDTH - _LABEL / 2:
        x, anchor = WIDTH, "end"
    else:
        anchor = "middle"
    return f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 4}" text-anchor="{anchor}">{time}</text>'


def _bar(middle: float, width: float, height: float) -> str:
    return f"M{middle - width / 2:.1f} {_BOTTOM}v{-height:.1f}h{width:.1f}v{height:.1f}z"


def _middle(index: int, step: float) -> float:
    return _LEFT + (index + 0.5) * step


def _step(samples: Sequence[Sample]) -> float:
    """How much of the width each column has for itself."""
    return (_RIGHT - _LEFT) / max(1, len(samples))


def _highest(samples: Sequence[Sample]) -> float:
    return max((value for one in samples for value in one.values), default=0.0)


def _height(value: float, highest: float) -> float:
    """Of a column; what is not nothing can be seen."""
    if value <= 0 or highest <= 0:
        return 0.0
    return max(1.0, (_BOTTOM - _TOP) * value / highest)
