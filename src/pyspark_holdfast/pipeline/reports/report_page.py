"""The page of a pipeline: one HTML file with all it needs, made from the reports alone. Pure.

No script, no font and no picture from elsewhere: it opens from a disk, an object store or a mail, and a policy in its
head forbids it to load or run anything. All words that came from outside are escaped (`page_words.text`). It can be
read without seeing it (titles, roles, tables) and used without a mouse. Of many tables the plots are folded, but for
those that failed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast import __version__
from pyspark_holdfast.pipeline.reports.page_graph import GraphNode, graph
from pyspark_holdfast.pipeline.reports.page_plots import Series, bars, gathered, line, sample, spark
from pyspark_holdfast.pipeline.reports.page_style import STYLE
from pyspark_holdfast.pipeline.reports.page_words import (
    anchor,
    brief,
    counted,
    duration,
    machine_time,
    moment,
    size,
    text,
    whole,
)
from pyspark_holdfast.pipeline.reports.report_history import RunHistory, RunLine, RunPoint, TableNews
from pyspark_holdfast.pipeline.run_report import InputReport, TableReport

_UNFOLDED_MAX = 12
"""More tables than this are folded; failed ones are not."""
_RUNS_SHOWN = 20
_PARTITIONS_SHOWN = 16
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_NAMES = {"written": "written", "unchanged": "nothing new", "failed": "failed", "skipped": "skipped"}


def page(history: RunHistory) -> str:
    """The whole page."""
    pipelines = history.pipelines
    name = ", ".join(pipelines) or "no runs yet"
    tables = history.in_order
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{text(name, 200)} · pipeline report</title>
<style>{STYLE}</style>
</head>
<body>
<a class="skip" href="#tables">Skip to the tables</a>
<header>
{_head(history, name, tables)}
</header>
<main>
{_picture(tables)}
{_overview(history, tables)}
{_cards(history, tables)}
{_runs(history)}
</main>
<footer>Made by holdfast {text(__version__)} after the last of {counted(len(history.runs), "run")}.
For machines: one JSON file per run in <code>runs/</code>, OpenLineage events in <code>lineage.jsonl</code>.
All times are UTC.</footer>
</body>
</html>
"""


# -- the head ---------------------------------------------------------------------------------------------------


def _head(history: RunHistory, name: str, tables: Sequence[TableNews]) -> str:
    lines = [history.runs[one] for one in history.names]
    if not lines:
        return f"<h1>{text(name)}</h1><p class='soft'>Reports appear here after the first run.</p>"
    last = lines[-1]
    failing = [one for one in tables if one.is_failing]
    state = (
        f'<span class="state failed">{counted(len(failing), "table")} could not be written</span>'
        if failing
        else '<span class="state written">All tables are written</span>'
    )
    facts = {
        "Tables": whole(len(tables)),
        "Rows in tables": brief(sum(one.known.rows for one in tables)),
        "Size": size(sum(one.known.bytes for one in tables)),
        "Rows to read": brief(sum(_lag_rows(one) for one in tables)),
        "Last run": duration(last.seconds),
    }
    drawn = "".join(f"<div><dt>{label}</dt><dd>{value}</dd></div>" for label, value in facts.items())
    when = f"&nbsp;·&nbsp; last run {_time(last.started_ms)}"
    return f"<h1>{text(name)}</h1>\n<p>{state} <span class='soft'>{when}</span></p>\n<dl class=\"facts\">{drawn}</dl>"


def _lag_rows(news: TableNews) -> int:
    return sum(one.lag for one in news.inputs if one.kind == "topic")


# -- the picture ------------------------------------------------------------------------------------------------


def _picture(tables: Sequence[TableNews]) -> str:
    if not tables:
        return ""
    nodes: dict[str, GraphNode] = {}
    edges: list[tuple[str, str]] = []
    own = {(one.pipeline, one.report.name) for one in tables}
    for news in tables:
        for one in news.inputs:
            source = (
                _key(news.pipeline, one.name)
                if (news.pipeline, one.name) in own and one.kind == "table"
                else (f"{one.kind} {one.place} {one.name}")
            )
            if not source.startswith("own "):
                nodes.setdefault(source, GraphNode(source, one.name, one.kind, "topic"))
            edges.append((source, _key(news.pipeline, news.report.name)))
    for news in tables:
        found = _key(news.pipeline, news.report.name)
        about = f"{news.report.kind}, {counted(news.known.rows, 'row')}"
        style = "failed" if news.is_failing else "fine"
        nodes[found] = GraphNode(found, news.report.name, about, style, anchor(f"{news.pipeline}/{news.report.name}"))
    drawn = graph(list(nodes.values()), edges, "What each table reads")
    return (
        f'<section aria-labelledby="lineage"><h2 id="lineage">What each table reads</h2>'
        f'<div class="wide picture" tabindex="0" role="region" aria-labelledby="lineage">{drawn}</div></section>'
    )


def _key(pipeline: str, name: str) -> str:
    return f"own {pipeline}/{name}"


# -- the tables -------------------------------------------------------------------------------------------------


def _overview(history: RunHistory, tables: Sequence[TableNews]) -> str:
    several = len(history.pipelines) > 1
    heads = [
        "Table",
        *(["Pipeline"] if several else []),
        "Kind",
        "Last run",
        "Version",
        "Rows",
        "Files",
        "Size",
        "Left to read",
    ]
    numbers = {"Version", "Rows", "Files", "Size", "Left to read"}
    head = "".join(f'<th scope="col"{_right(name in numbers)}>{name}</th>' for name in heads)
    rows = "".join(_row(history, one, several) for one in tables)
    empty = f'<tr><td colspan="{len(heads) + 1}" class="soft">No table has run yet.</td></tr>'
    return (
        f'<section aria-labelledby="tables"><h2 id="tables">Tables</h2><div class="wide" tabindex="0" role="region" '
        f'aria-labelledby="tables"><table><thead><tr>{head}<th scope="col">Rows out per run</th></tr></thead>'
        f"<tbody>{rows or empty}</tbody></table></div></section>"
    )


def _row(history: RunHistory, news: TableNews, several: bool) -> str:
    one, points = news.known, history.points(news)
    label = f"rows out over the last runs of {news.report.name}"
    cells = [
        f'<th scope="row"><a href="#{anchor(f"{news.pipeline}/{one.name}")}">{text(one.name)}</a></th>',
        *([f"<td>{text(news.pipeline)}</td>"] if several else []),
        f"<td>{text(one.kind)}</td>",
        f"<td>{_state(news.report)}</td>",
        f'<td class="n">{"–" if one.version < 0 else whole(one.version)}</td>',
        f'<td class="n">{whole(one.rows)}</td>',
        f'<td class="n">{whole(one.files)}</td>',
        f'<td class="n">{size(one.bytes)}</td>',
        f'<td class="n">{_lag(news)}</td>',
        f"<td>{spark(label, [point.rows_out for _, point in points])}</td>",
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _lag(news: TableNews) -> str:
    inputs = news.inputs
    if inputs and all(one.kind == "table" for one in inputs):
        behind = sum(one.lag for one in inputs)
        return counted(behind, "version") if behind else "0"
    return whole(_lag_rows(news))


def _state(report: TableReport) -> str:
    return f'<span class="state {report.outcome}">{_NAMES[report.outcome]}</span>'


def _right(is_number: bool) -> str:
    return ' class="n"' if is_number else ""


# -- one table --------------------------------------------------------------------------------------------------


def _cards(history: RunHistory, tables: Sequence[TableNews]) -> str:
    if not tables:
        return ""
    is_folded = len(tables) > _UNFOLDED_MAX
    drawn = "\n".join(_card(history, one, is_folded and not one.is_failing) for one in tables)
    return f'<section aria-labelledby="each"><h2 id="each">Each table over its runs</h2>\n{drawn}</section>'


def _card(history: RunHistory, news: TableNews, is_folded: bool) -> str:
    one = news.known
    identity = anchor(f"{news.pipeline}/{one.name}")
    said = f'<p class="said soft">{text(_description(news))}</p>' if _description(news) else ""
    plots = _plots(news, history.points(news))
    shown = f"<details><summary>Plots</summary>{plots}</details>" if is_folded else plots
    written = f", last written {_time(news.written_ms)}" if news.written_ms > 0 else ""
    about = f"{text(one.kind)}, {counted(one.rows, 'row')} in {counted(one.files, 'file')}, {size(one.bytes)}{written}"
    return (
        f'<article class="card" id="{identity}" aria-labelledby="{identity}-name"><div class="top">'
        f'<h3 id="{identity}-name">{text(one.name)}</h3>{_state(news.report)}</div><p class="soft">{about}</p>'
        f"{said}{_failure(news)}{shown}{_inputs(news.inputs)}{_columns(one)}"
        f'<p class="soft"><code>{text(one.place)}</code></p></article>'
    )


def _description(news: TableNews) -> str:
    return news.report.description or news.known.description


def _failure(news: TableNews) -> str:
    """What the last run said about it; of a failure that is over, only a line that unfolds."""
    note = f'<p class="said soft">{text(news.report.note)}</p>' if news.report.note else ""
    failure = news.failure
    if failure is None:
        return note
    hint = f"<p>{text(failure.hint)}</p>" if failure.hint else ""
    body = f"<pre>{text(failure.error)}</pre>{hint}"
    when = _time(failure.at_ms)
    if news.report.outcome == "failed":
        return f'{note}<div class="error" role="note"><p>Failed {when}</p>{body}</div>'
    return f'{note}<details><summary>Last failed {when}</summary><div class="error past">{body}</div></details>'


def _plots(news: TableNews, points: Sequence[tuple[int, RunPoint]]) -> str:
    bad = {at: point.outcome in ("failed", "skipped") for at, point in points}
    rows = [sample(at, point.rows_in, point.rows_out, is_bad=bad[at]) for at, point in points]
    lags = [sample(at, point.lag, is_bad=bad[at]) for at, point in points]
    times = [sample(at, point.seconds, is_bad=bad[at]) for at, point in points]
    last = points[-1][1] if points else RunPoint("unchanged", 0, 0, 0, 0.0)
    unit = "versions" if news.inputs and all(one.kind == "table" for one in news.inputs) else "rows"
    name = news.report.name
    return (
        '<div class="plots">'
        + _figure(
            '<span><span class="key in"></span>rows in<span class="key out"></span>rows out</span>',
            f"{brief(last.rows_in)} in, {brief(last.rows_out)} out",
            bars(f"{name}, rows", gathered(rows, sum), [Series("in", "in"), Series("out", "out")], brief),
        )
        + _figure(
            f"<span>{unit} left to read</span>",
            brief(last.lag),
            line(f"{name}, {unit} left to read", gathered(lags, max), Series("left", "lag"), brief),
        )
        + _figure(
            "<span>duration</span>",
            duration(last.seconds),
            line(f"{name}, duration", gathered(times, max), Series("took", "time"), duration),
        )
        + "</div>"
    )


def _figure(caption: str, value: str, drawn: str) -> str:
    return f"<figure><figcaption>{caption}<b>{value}</b></figcaption>{drawn}</figure>"


def _inputs(inputs: Sequence[InputReport]) -> str:
    if not inputs:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{text(one.name)}</th><td>{text(one.kind)}{", whole" if one.is_whole else ""}</td>'
        f'<td>{_range(one)}</td><td class="n">{whole(one.rows)}</td><td class="n">{whole(one.lag)}</td></tr>'
        for one in inputs
    )
    heads = ("Input", "Kind", "Read the last time", "Rows", "Left")
    return _folded(counted(len(inputs), "input"), heads, {"Rows", "Left"}, rows)


def _range(one: InputReport) -> str:
    if one.kind == "table":
        return f"version {one.end.get('version', -1)}"
    parts = [
        f"{text(number, 20)}: {whole(one.begin.get(number, 0))} to {whole(end)}"
        for number, end in sorted(one.end.items(), key=lambda item: (len(item[0]), item[0]))
    ]
    more = len(parts) - _PARTITIONS_SHOWN
    shown = "<br>".join(parts[:_PARTITIONS_SHOWN])
    return f"{shown}<br>and {counted(more, 'partition')} more" if more > 0 else shown


def _columns(table: TableReport) -> str:
    if not table.columns:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{text(name)}</th><td><code>{text(kind)}</code></td></tr>'
        for name, kind in table.columns.items()
    )
    return _folded(counted(len(table.columns), "column"), ("Column", "Type"), set(), rows)


def _folded(summary: str, heads: Sequence[str], numbers: Collection[str], rows: str) -> str:
    """A small table that unfolds."""
    head = "".join(f'<th scope="col"{_right(name in numbers)}>{name}</th>' for name in heads)
    return (
        f'<details><summary>{summary}</summary><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


# -- the runs ---------------------------------------------------------------------------------------------------


def _runs(history: RunHistory) -> str:
    names = history.names[::-1][:_RUNS_SHOWN]
    if not names:
        return ""
    several = len(history.pipelines) > 1
    rows = "".join(_run(name, history.runs[name], several) for name in names)
    pipeline = "<th scope='col'>Pipeline</th>" if several else ""
    return (
        '<section aria-labelledby="runs"><h2 id="runs">Last runs</h2><div class="wide" tabindex="0" role="region" '
        f'aria-labelledby="runs"><table><thead><tr><th scope="col">Began</th>{pipeline}<th scope="col">Why</th>'
        '<th scope="col">Tables</th><th scope="col" class="n">Rows in</th><th scope="col" class="n">Rows out</th>'
        f'<th scope="col" class="n">Duration</th></tr></thead><tbody>{rows}</tbody></table></div></section>'
    )


def _run(name: str, one: RunLine, several: bool) -> str:
    outcomes = [point.outcome for point in one.tables.values()]
    summary = ", ".join(f"{outcomes.count(key)} {word}" for key, word in _NAMES.items() if key in outcomes)
    state = "failed" if {"failed", "skipped"} & set(outcomes) else "written" if "written" in outcomes else "unchanged"
    pipeline = f"<td>{text(one.pipeline)}</td>" if several else ""
    return (
        f'<tr><td><a href="runs/{text(name)}">{_time(one.started_ms)}</a></td>{pipeline}<td>{text(one.reason)}</td>'
        f'<td><span class="state {state}">{summary}</span></td>'
        f'<td class="n">{whole(sum(point.rows_in for point in one.tables.values()))}</td>'
        f'<td class="n">{whole(sum(point.rows_out for point in one.tables.values()))}</td>'
        f'<td class="n">{duration(one.seconds)}</td></tr>'
    )


def _time(ms: int) -> str:
    return f'<time datetime="{machine_time(ms)}">{moment(ms)}</time>'
