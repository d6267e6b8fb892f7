"""The README's chart, drawn from one run of `script/bench wedge`: rows per second of each way, and what it costs.

One SVG for light and dark; no fonts or scripts from elsewhere. Bars are scaled to the fastest way, whichever that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

CHART = Path(__file__).parents[1] / "docs/images/wedge.svg"
WIDTH, TOP, ROW, LABELS, BARS = 720, 58, 64, 208, 330
_STYLE = """
    text { font: 13px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #44546a }
    .title { font-size: 15px; font-weight: 600; fill: #14233a }
    .name { font-size: 14px; font-weight: 600; fill: #14233a; text-anchor: end }
    .rate { font-size: 14px; font-weight: 600; fill: #14233a }
    .bar { fill: #a9b6c8 } .ours { fill: #3d8b61 }
    @media (prefers-color-scheme: dark) {
      text { fill: #b9c4d3 } .title, .name, .rate { fill: #eaf0f8 }
      .bar { fill: #56657c } .ours { fill: #6cc193 }
    }
"""


@dataclass(frozen=True, slots=True)
class Way:
    """One way from single rows to a table, in figures."""

    name: str
    rows_per_second: float
    p99_ms: float
    failed: int
    """Tries that failed, of one typical round."""
    files: int


def chart(ways: Sequence[Way], facts: Mapping[str, object], day: str) -> str:
    """The picture as SVG text."""
    most = max(way.rows_per_second for way in ways)
    height = TOP + ROW * len(ways) + 34
    rows = "\n".join(_row(way, TOP + ROW * at, most, is_ours=at == 0) for at, way in enumerate(ways))
    said = "; ".join(f"{way.name} {way.rows_per_second:,.0f} rows/s" for way in ways)
    where = f"{facts['cores']} cores, {facts['architecture']}, {facts['filesystem']}, {facts['python']}, {day}"
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" \
aria-labelledby="wedge-title wedge-text">
  <title id="wedge-title">From single rows of eight processes to one Delta table</title>
  <desc id="wedge-text">{escape(said)}</desc>
  <style>{_STYLE}  </style>
  <text class="title" x="16" y="26">Eight processes append single typed rows; they end in one Delta table</text>
  <text x="16" y="45">rows per second from the first append to the table, every append durable; more is better</text>
{rows}
  <text x="16" y="{height - 12}">script/bench wedge: {escape(where)}</text>
</svg>
"""


def _row(way: Way, top: int, most: float, *, is_ours: bool) -> str:
    wide = max(2.0, BARS * way.rows_per_second / most)
    kind = "bar ours" if is_ours else "bar"
    costs = f"p99 {_short(way.p99_ms)} ms · {way.failed:,} failed tries · {way.files:,} {_files(way.files)}"
    return f"""\
  <text class="name" x="{LABELS - 12}" y="{top + 25}">{escape(way.name)}</text>
  <rect class="{kind}" x="{LABELS}" y="{top + 8}" width="{wide:.1f}" height="26" rx="3"/>
  <text class="rate" x="{LABELS + wide + 10:.1f}" y="{top + 26}">{way.rows_per_second:,.0f} rows/s</text>
  <text x="{LABELS}" y="{top + 50}">{costs}</text>"""


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _files(count: int) -> str:
    return "file" if count == 1 else "files"
