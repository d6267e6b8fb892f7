"""A reports folder: nothing is lost when several runs end at once, nothing grows forever, and nothing is believed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.clock import SystemClock
from holdfast.errors import Invalid
from holdfast.store.memory import MemoryStore
from pyspark_holdfast.pipeline.reports import report_files, report_history
from pyspark_holdfast.pipeline.reports.report_files import ReportFiles, file_name
from pyspark_holdfast.pipeline.run_report import RunReport
from tests.pipeline.report_data import history_of, run_report, table_report

pytestmark = pytest.mark.disk


def idle(number: int) -> RunReport:
    return run_report(table_report(outcome="unchanged"), number=number)


def runs(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "runs").iterdir())


def test_a_run_leaves_its_report_a_page_and_its_lineage(tmp_path: Path) -> None:
    """By name and time; the report reads back as what it was."""
    report = run_report()
    assert ReportFiles(tmp_path).keep(report) == str(tmp_path / "index.html")
    assert runs(tmp_path) == ["20261116T033320000Z-00000000-0000-0000-0000-000000000001.json"]
    assert msgspec.json.decode((tmp_path / "runs" / runs(tmp_path)[0]).read_bytes(), type=RunReport) == report
    assert (tmp_path / "index.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    lines = (tmp_path / "lineage.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["eventType"] for line in lines] == ["START", "START", "COMPLETE", "COMPLETE"]
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "index.html", "lineage.jsonl", "history.json"}


def test_telling_a_run_twice_keeps_it_once(tmp_path: Path) -> None:
    """A reply may be lost."""
    files = ReportFiles(tmp_path)
    files.keep(run_report())
    files.keep(run_report())
    assert len(runs(tmp_path)) == 1


def test_a_folder_that_was_removed_comes_again(tmp_path: Path) -> None:
    """Also while the process that writes to it lives."""
    files = ReportFiles(tmp_path / "reports")
    files.keep(run_report())
    shutil.rmtree(tmp_path / "reports")
    files.keep(run_report(number=1))
    assert len(runs(tmp_path / "reports")) == 1
    assert "after the last of 1 run." in (tmp_path / "reports" / "index.html").read_text(encoding="utf-8")


def test_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run costs the same after five hundred others."""
    for number in range(5):
        ReportFiles(tmp_path).keep(run_report(number=number))
    read: list[str] = []
    files = ReportFiles(tmp_path)
    original = files._report
    monkeypatch.setattr(files, "_report", lambda name: read.append(name) or original(name))
    files.keep(run_report(number=5))
    assert read == []
    assert len(files.history({}).runs) == 6


def test_a_history_that_is_lost_or_damaged_is_made_again(tmp_path: Path) -> None:
    """The page stays the same."""
    for number in range(4):
        ReportFiles(tmp_path).keep(
            run_report(table_report(outcome="failed" if number == 2 else "written"), number=number)
        )
    before = (tmp_path / "index.html").read_bytes()
    for damage in (b"", b"{", b'{"format":99}', b'{"runs":{"x":1}}', b"\xff\xfe"):
        (tmp_path / "history.json").write_bytes(damage)
        ReportFiles(tmp_path).draw()
        assert (tmp_path / "index.html").read_bytes() == before
    (tmp_path / "history.json").unlink()
    ReportFiles(tmp_path).draw()
    assert (tmp_path / "index.html").read_bytes() == before


def test_files_that_are_no_reports_are_passed_over(tmp_path: Path) -> None:
    """Of another name, cut off, of another format, not regular, too large."""
    files = ReportFiles(tmp_path)
    files.keep(run_report())
    folder = tmp_path / "runs"
    (folder / "notes.txt").write_text("hello")
    (folder / file_name(run_report(number=1))).write_bytes(b'{"format":1,"pipeline":')
    (folder / file_name(run_report(number=2))).write_bytes(msgspec.json.encode(run_report(number=2, format=99)))
    (folder / file_name(run_report(number=3))).symlink_to("/etc/hostname")
    with (folder / file_name(run_report(number=4))).open("wb") as stream:
        stream.truncate(report_files._REPORT_BYTES_MAX + 1)
    files.keep(run_report(number=5))
    assert len(files.history({}).runs) == 2


def test_the_oldest_reports_go_and_idle_runs_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run every few seconds that finds nothing does not push out those that did something."""
    monkeypatch.setattr(report_history, "RUNS_MAX", 6)
    monkeypatch.setattr(report_history, "IDLE_RUNS_MAX", 2)
    files = ReportFiles(tmp_path)
    for number in range(3):
        files.keep(run_report(number=number))
    for number in range(3, 20):
        files.keep(idle(number))
    names = [file_name(run_report(number=number)) for number in (0, 1, 2, 18, 19)]
    assert runs(tmp_path) == names
    for number in range(20, 30):
        files.keep(run_report(number=number))
    assert len(runs(tmp_path)) == 6
    assert len(files.history({}).runs) == 6


def test_what_is_known_of_a_table_does_not_depend_on_the_order(tmp_path: Path) -> None:
    """Reports that a race left out are added later."""
    reports = [
        run_report(table_report(outcome=one), number=n)
        for n, one in enumerate(("written", "failed", "unchanged", "failed"))
    ]
    assert history_of(*reports) == history_of(*reports[::-1])


PROGRAM = """
import sys
from pyspark_holdfast.pipeline.reports.report_files import ReportFiles
from tests.pipeline.report_data import run_report
sys.stdin.readline()
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    ReportFiles(sys.argv[1]).keep(run_report(number=number))
"""


def test_two_processes_that_report_at_once_lose_nothing(tmp_path: Path) -> None:
    """All reports, all lines of lineage, and a page of all of them once the last one has ended."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path), str(first), str(first + 15)],
            stdin=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        for first in (0, 15)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
    assert [process.wait(60) for process in started] == [0, 0]
    assert len(runs(tmp_path)) == 30
    lines = (tmp_path / "lineage.jsonl").read_text(encoding="utf-8").splitlines()
    assert len({json.loads(line)["run"]["runId"] for line in lines}) == 2 * 30
    assert len(lines) == 4 * 30
    ReportFiles(tmp_path).keep(run_report(number=30))
    assert "after the last of 31 runs" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_a_line_that_was_cut_off_stays_by_itself(tmp_path: Path) -> None:
    """A power cut costs that line, and no other."""
    files = ReportFiles(tmp_path)
    files.keep(run_report())
    path = tmp_path / "lineage.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    files.keep(run_report(number=1))
    lines = path.read_bytes().splitlines()
    assert len(lines) == 8
    assert [json.loads(line)["eventType"] for line in lines[4:]] == ["START", "START", "COMPLETE", "COMPLETE"]


def test_lineage_is_put_aside_when_it_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file before is kept; what is older goes."""
    monkeypatch.setattr(report_files, "LINEAGE_BYTES_MAX", 10)
    files = ReportFiles(tmp_path)
    for number in range(3):
        files.keep(run_report(number=number))
    for name, number in (("lineage.jsonl", 2), ("lineage.1.jsonl", 1)):
        lines = (tmp_path / name).read_bytes().splitlines()
        assert len(lines) == 4
        assert json.loads(lines[0])["run"]["runId"] == run_report(number=number).id


def test_reports_on_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be replaced or appended to; what goes, goes with its lineage."""
    monkeypatch.setattr(report_history, "RUNS_MAX", 2)
    files = ReportFiles("memory://reports-of-a-test")
    for number in range(4):
        assert files.keep(run_report(number=number)) == "memory://reports-of-a-test/index.html"
    store = MemoryStore.named("reports-of-a-test", SystemClock())
    names = [file_name(run_report(number=number)) for number in (2, 3)]
    assert sorted(one.key for one in store.list("")) == sorted(
        ["history.json", "index.html", *(f"runs/{name}" for name in names), *(f"lineage/{name}l" for name in names)]
    )
    assert b"after the last of 2 runs" in store.get("index.html")


@pytest.mark.parametrize("place", ["s3://key:secret@bucket/x", "", "ftp://nowhere"])
def test_a_place_that_is_none_is_refused(place: str) -> None:
    """And not repeated where it may carry a secret."""
    with pytest.raises(Invalid) as refused:
        ReportFiles(place)
    assert "secret" not in str(refused.value)


def test_a_report_prints_as_a_small_table():
    """A line for each table, with what became of it; escaped in a notebook."""
    report = run_report(table_report("orders_now"), table_report("totals", "failed", error="<b>no</b>"))
    first, *lines = str(report).splitlines()
    assert first.split()[:2] == ["table", "outcome"]
    assert [line.split()[:2] for line in lines] == [["orders_now", "written"], ["totals", "failed"]]
    assert "&lt;b&gt;no" in report._repr_html_()
