"""What reads what, as a picture: topics at the left, each table to the right of all that it reads. Pure.

Layers follow from the inputs; inside a layer, a table stands near what it reads. Reports may say anything, also that
two tables read each other: such edges are drawn, and count for no layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from pyspark_holdfast.pipeline.reports.page_words import text

_WIDTH, _HEIGHT = 206, 46
_ACROSS, _DOWN, _MARGIN = 276, 60, 8
_SWEEPS = 4
_NAME_MAX, _ABOUT_MAX = 24, 29


class GraphNode(NamedTuple):
    """A topic or a table."""

    key: str
    name: str
    about: str
    """A few words below the name."""
    style: str
    """A class of the page's style: `topic`, `fine`, `idle`, `failed`."""
    link: str = ""
    """An id in the page."""


def graph(nodes: Sequence[GraphNode], edges: Sequence[tuple[str, str]], label: str) -> str:
    """A picture of the nodes; edges lead from what is read to who reads it."""
    known = {node.key for node in nodes}
    edges = [(a, b) for a, b in dict.fromkeys(edges) if a in known and b in known and a != b]
    reads: dict[str, list[str]] = {node.key: [] for node in nodes}
    for a, b in edges:
        reads[b].append(a)
    depth = _depths(reads)
    ways = [_way(a, b, depth) for a, b in edges]
    places = _places(_ordered(_columns(depth, ways), ways))
    width = max((x for x, _ in places.values()), default=0) + _WIDTH + _MARGIN
    height = max((y for _, y in places.values()), default=0) + _HEIGHT + _MARGIN
    drawn = "".join(_edge([places[key] for key in way]) for way in ways)
    boxes = "".join(_box(node, *places[node.key]) for node in nodes)
    return (
        f'<svg class="graph" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="group" '
        f'aria-label="{text(label)}"><g class="edges" aria-hidden="true">{drawn}</g>{boxes}</svg>'
    )


def _way(a: str, b: str, depth: Mapping[str, int]) -> list[str]:
    """From a to b, with a place of its own in each layer between: no edge is drawn through a box."""
    return [a, *(f"{a}\0{b}\0{layer}" for layer in range(depth[a] + 1, depth[b])), b]


def _columns(depth: Mapping[str, int], ways: Sequence[Sequence[str]]) -> list[list[str]]:
    """What stands in each layer."""
    columns: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for key, layer in depth.items():
        columns[layer].append(key)
    for way in ways:
        for layer, key in enumerate(way[1:-1], depth[way[0]] + 1):
            columns[layer].append(key)
    return columns


def _depths(reads: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """How many steps behind its farthest topic each one stands."""
    depth = dict.fromkeys(reads, 0)
    for _ in range(len(depth)):
        before = dict(depth)
        for key, sources in reads.items():
            depth[key] = max((before[source] + 1 for source in sources), default=0)
        if depth == before:
            return depth
    return {key: min(found, 1) for key, found in depth.items()}  # in a circle: nothing is left of anything


def _ordered(columns: list[list[str]], ways: Sequence[Sequence[str]]) -> list[list[str]]:
    """Each layer by where its neighbours are, so that few lines cross."""
    near: dict[str, list[str]] = {}
    for a, b in (step for way in ways for step in pairwise(way)):
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    for _ in range(_SWEEPS):
        place = _relative(columns)
        for column in columns:
            column.sort(key=lambda key: _mean([place[one] for one in near.get(key, ())], place[key]))
            place |= _relative([column])
    return columns


def _relative(columns: Sequence[Sequence[str]]) -> dict[str, float]:
    """How far down in its layer each one stands."""
    return {key: (index + 0.5) / len(column) for column in columns for index, key in enumerate(column)}


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _places(columns: Sequence[Sequence[str]]) -> dict[str, tuple[int, int]]:
    """The upper left corner of each box; short layers stand in the middle."""
    tallest = max(map(len, columns), default=0)
    return {
        key: (_MARGIN + layer * _ACROSS, _MARGIN + (2 * index + tallest - len(column)) * _DOWN // 2)
        for layer, column in enumerate(columns)
        for index, key in enumerate(column)
    }


def _edge(way: Sequence[tuple[int, int]]) -> str:
    x, y = way[0][0] + _WIDTH, way[0][1] + _HEIGHT // 2
    path = f"M{x} {y}"
    for left, top in way[1:]:
        middle, bend = top + _HEIGHT // 2, max(30, abs(left - x) // 2)
        path += f"C{x + bend} {y} {left - bend} {middle} {left} {middle}h{_WIDTH}"
        x, y = left + _WIDTH, middle
    tip = way[-1][0]
    return f'<path d="{path.removesuffix(f"h{_WIDTH}")}"/><path class="tip" d="M{tip} {y}l-7 -3.5v7z"/>'


def _box(node: GraphNode, x: int, y: int) -> str:
    full = f"<title>{text(f'{node.name}: {node.about}')}</title>"
    round_by = _HEIGHT // 2 if node.style == "topic" else 7
    body = (
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="{round_by}"/>'
        f'<text class="name" x="{x + 18}" y="{y + 20}">{text(_cut(node.name))}</text>'
        f'<text class="about" x="{x + 18}" y="{y + 36}">{text(node.about, _ABOUT_MAX)}</text>'
    )
    if not node.link:
        return f'<g class="node {node.style}">{full}{body}</g>'
    return f'<a class="node {node.style}" href="#{text(node.link)}">{full}{body}</a>'


def _cut(name: str) -> str:
    """A long name without its middle: names of one pipeline often begin alike."""
    if len(name) <= _NAME_MAX:
        return name
    return f"{name[: _NAME_MAX // 2]}…{name[-(_NAME_MAX // 2 - 1) :]}"
