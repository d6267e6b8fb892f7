"""The page of a pipeline: one file that needs nothing else, holds anything, and can be read by everybody."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_holdfast.pipeline.reports.page_graph import GraphNode, graph
from pyspark_holdfast.pipeline.reports.page_plots import Series, line, sample
from pyspark_holdfast.pipeline.reports.page_words import brief, duration, size, text
from pyspark_holdfast.pipeline.reports.report_history import RunHistory, with_report
from pyspark_holdfast.pipeline.reports.report_page import page
from pyspark_holdfast.pipeline.run_report import InputReport, RunReport, TableReport
from tests.pipeline.report_data import history_of, run_report, shop, table_input, table_report, topic_input

pytestmark = pytest.mark.unit

VOID = {"meta", "br"}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;\x1b[31m\u202e\ud800"


class Seen(HTMLParser):
    """What a browser would make of a page: its elements, in order; everything must be closed that was opened."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


HISTORIES = {
    "no runs": RunHistory(),
    "one run": history_of(*shop(1)),
    "forty runs": history_of(*shop(40)),
    "a thousand runs": history_of(*shop(1000)),
    "nothing in it": history_of(
        run_report(table_report("empty", "unchanged", rows=0, files=0, bytes=0, rows_in=0, rows_out=0, seconds=0.0,
                                inputs=[], version=-1, columns={}))
    ),
    "fifty tables": history_of(run_report(*(table_report(f"table_{n}") for n in range(50)))),
    "huge numbers": history_of(run_report(table_report(rows=10**18, bytes=2**62, rows_in=10**15, seconds=1e9))),
    "all failed": history_of(run_report(table_report("a", "failed"), table_report("b", "skipped", inputs=[]))),
}  # fmt: skip


@pytest.mark.parametrize("name", HISTORIES)
def test_a_page_is_whole_and_needs_nothing_else(name: str) -> None:
    """Every element is closed, every SVG is XML, nothing is loaded, nothing runs."""
    source = page(HISTORIES[name])
    seen = Seen(source)
    for svg in re.findall(r"<svg.*?</svg>", source, re.DOTALL):
        ElementTree.fromstring(svg)
    assert not {"script", "link", "img", "iframe", "object", "embed", "form"} & {tag for tag, _ in seen.elements}
    assert not re.search(r"url\(|@import|https?:", source)
    policies = [one["content"] for one in seen.all("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert not re.search(r"\bnan\b|\binf\b|None", " ".join(seen.words))


@pytest.mark.parametrize("name", HISTORIES)
def test_a_page_can_be_read_without_seeing_it(name: str) -> None:
    """A language, a title, headings in order, names for plots, heads for columns, ids that lead somewhere."""
    seen = Seen(page(HISTORIES[name]))
    assert seen.all("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in seen.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(one.get("aria-label") and one.get("role") for one in seen.all("svg"))
    assert all(one.get("scope") for one in seen.all("th"))
    ids = [attributes["id"] for _, attributes in seen.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [str(one["href"]) for one in seen.all("a")]
    assert {target.removeprefix("#") for target in targets if target.startswith("#")} <= set(ids)
    assert all(target.startswith(("#", "runs/")) for target in targets)
    named = [one["aria-labelledby"] for _, one in seen.elements if "aria-labelledby" in one]
    assert set(named) <= set(ids)


def test_what_others_wrote_is_text() -> None:
    """Names, descriptions, errors, columns, places and inputs: no browser acts on any of them."""
    table = table_report(
        HOSTILE,
        "failed",
        kind=HOSTILE,
        error=HOSTILE,
        hint=HOSTILE,
        description=HOSTILE,
        place=HOSTILE,
        columns={HOSTILE: HOSTILE},
        inputs=[topic_input(HOSTILE), table_input(HOSTILE, is_whole=True)],
    )
    for reports in (
        [run_report(table, pipeline=HOSTILE, reason="run")],
        [run_report(table), run_report(pipeline=HOSTILE)],
    ):
        source = page(history_of(*reports))
        seen = Seen(source)
        assert not {"script", "img"} & {tag for tag, _ in seen.elements}
        assert not [name for _, attributes in seen.elements for name in attributes if name.startswith("on")]
        assert "\x1b" not in source
        assert "\u202e" not in source
        source.encode()
        assert "<script>alert(1)</script>" in " ".join(seen.words)


def test_a_failure_stands_on_the_page_with_its_remedy_until_it_is_over() -> None:
    """Then it can still be unfolded."""
    failed = run_report(table_report("sums", "failed", error="it broke here", hint="do that"), number=1)
    source = page(history_of(run_report(table_report("sums")), failed))
    assert '<div class="error" role="note">' in source
    assert "it broke here" in source
    assert "do that" in source
    assert "1 table could not be written" in source
    over = page(history_of(failed, run_report(table_report("sums"), number=2)))
    assert "it broke here" in over
    assert "Last failed" in over
    assert "All tables are written" in over


def test_a_skipped_table_says_what_it_waits_for_and_not_an_old_failure() -> None:
    """Its own failure is over; another table's is not."""
    before = run_report(table_report("sums", "failed", error="it broke here"))
    skipped = table_report("sums", "skipped", note="table 'a', which it reads, failed")
    source = page(history_of(before, run_report(skipped, number=1)))
    assert "which it reads, failed" in source
    assert 'role="note"' not in source
    assert "Last failed" in source


def test_a_table_that_is_left_alone_says_when_it_was_written() -> None:
    """However many runs found nothing new since then."""
    runs = [run_report(table_report("sums", started_ms=1_794_800_123_000))]
    runs += [run_report(table_report("sums", "unchanged"), number=number) for number in range(1, 4)]
    assert 'last written <time datetime="2026-11-16T03:35:23Z">' in page(history_of(*runs))


def test_a_failed_table_keeps_what_is_known_of_it() -> None:
    """A run that failed early knows neither rows nor inputs nor columns; the page does."""
    early = table_report("sums", "failed", rows=0, files=0, bytes=0, inputs=[], columns={}, version=-1)
    source = page(history_of(run_report(table_report("sums", rows=777)), run_report(early, number=1)))
    assert "777 rows" in source
    assert "order_id" in source
    assert ">orders</text>" in source


def test_two_pipelines_with_one_folder_are_distinguished() -> None:
    """Tables of the same name are two tables."""
    seen = Seen(page(history_of(run_report(), run_report(number=1, pipeline="other"))))
    assert seen.words.count("orders_now") == 2 * len(("row", "card", "picture"))
    assert "Pipeline" in seen.words


def test_many_runs_are_few_columns() -> None:
    """A page over a thousand runs is not larger than a reader's patience, and no rows are lost in it."""
    source = page(HISTORIES["a thousand runs"])
    assert len(source) < 400_000
    total = sum(table.rows_out for report in shop(1000) for table in report.tables if table.name == "orders_now")
    plotted = re.findall(r"orders_now, rows over 1000 runs.*?</svg>", source, re.DOTALL)
    columns = re.findall(r", out ([^,<]+)", plotted[0])
    assert len(columns) <= 72
    assert total > 0


@pytest.mark.parametrize("runs", [1, 2, 3, 72])
def test_a_plot_uses_its_width_and_times_stand_below_their_columns(runs: int) -> None:
    drawn = line("lag", [sample(3_600_000 * n, n, is_bad=False) for n in range(runs)], Series("lag", "lag"), str)
    places = [
        (float(x), float(width))
        for x, width in re.findall(r'class="hover" x="([\d.]+)" y="\d+" width="([\d.]+)', drawn)
    ]
    assert (places[0][0], len(places)) == (2, runs)
    assert sum(places[-1]) == pytest.approx(318, abs=0.5)
    middles = [x + width / 2 for x, width in places]
    times = [float(x) for x in re.findall(r'x="([\d.]+)" y="106"', drawn)]
    assert times == pytest.approx([middles[0], middles[-1]][: len(times)], abs=5)
    assert len(times) == min(2, runs)


def test_no_edge_goes_through_a_box() -> None:
    """A table that reads over a layer has a way of its own past the tables between."""
    nodes = [GraphNode(name, name, "", "fine") for name in "abc"]
    drawn = graph(nodes, [("a", "b"), ("b", "c"), ("a", "c")], "")
    boxes = {(int(x), int(y)) for x, y in re.findall(r'<rect x="(\d+)" y="(\d+)"', drawn)}
    (between,) = [(x, y) for x, y in boxes if x == sorted(x for x, _ in boxes)[1]]
    passing = re.findall(rf"C[\d -]+ {between[0]} (\d+)h", drawn)
    assert len(passing) == 1
    assert not between[1] <= int(passing[0]) <= between[1] + 46


def test_tables_that_read_each_other_do_not_hang_the_page() -> None:
    """Reports may say anything."""
    tables = [table_report("a", inputs=[table_input("b")]), table_report("b", inputs=[table_input("a")])]
    Seen(page(history_of(run_report(*tables, table_report("c", inputs=[table_input("c")])))))


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (brief(0), "0"),
        (brief(9_999), "9 999"),
        (brief(12_345), "12.3 k"),
        (brief(1_000_000), "1 M"),
        (size(0), "0 B"),
        (size(1536), "1.5 KiB"),
        (size(2**40), "1 TiB"),
        (size(2**62), "4194304 TiB"),
        (duration(0.04), "40 ms"),
        (duration(4.25), "4.2 s"),
        (duration(190), "3 min 10 s"),
        (duration(7500), "2 h 5 min"),
        (text("a" * 50, 10), "aaaaaaaaa…"),
    ],
)
def test_numbers_are_short(shown: str, words: str) -> None:
    """As people write them."""
    assert shown.replace("\N{THIN SPACE}", " ").replace("\N{NARROW NO-BREAK SPACE}", " ") == words


INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 10**6)
SECONDS = st.floats(allow_nan=False) | st.floats(0, 1e4)
WORDS = st.text(max_size=8)
INPUTS = st.builds(
    InputReport,
    name=WORDS,
    kind=st.sampled_from(["topic", "table"]),
    place=WORDS,
    source=WORDS,
    begin=st.dictionaries(WORDS, INTEGERS, max_size=1),
    end=st.dictionaries(WORDS, INTEGERS, max_size=2),
    rows=INTEGERS,
    lag=INTEGERS,
    is_whole=st.booleans(),
    columns=st.dictionaries(WORDS, WORDS, max_size=2),
)
TABLES = st.builds(
    TableReport,
    name=WORDS,
    kind=WORDS,
    outcome=st.sampled_from(["written", "unchanged", "failed", "skipped"]),
    description=WORDS,
    place=WORDS,
    version=INTEGERS,
    inputs=st.lists(INPUTS, max_size=2),
    rows_in=INTEGERS,
    rows_out=INTEGERS,
    rows=INTEGERS,
    files=INTEGERS,
    bytes=INTEGERS,
    started_ms=INTEGERS,
    seconds=SECONDS,
    columns=st.dictionaries(WORDS, WORDS, max_size=2),
    error=WORDS,
    hint=WORDS,
    note=WORDS,
)
RUNS = st.builds(
    RunReport, pipeline=WORDS, id=WORDS, started_ms=INTEGERS, seconds=SECONDS, tables=st.lists(TABLES, max_size=2)
)


@given(st.lists(RUNS, max_size=2))
def test_whatever_a_report_says_there_is_a_page(reports: list[RunReport]) -> None:
    """Reports are files that anybody may have written."""
    history = RunHistory()
    for number, report in enumerate(reports):
        history = with_report(history, f"{number}.json", report)
    source = page(history)
    Seen(source)
    for svg in re.findall(r"<svg.*?</svg>", source, re.DOTALL):
        ElementTree.fromstring(svg)
