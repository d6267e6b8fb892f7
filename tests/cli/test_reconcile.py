from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.cli.conftest import Owner, Run, objects, segment_files, tamper

pytestmark = pytest.mark.disk


def reconcile(run: Run, path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    result = run("reconcile", path, "--json", *options)
    (report,) = objects(result.stdout)
    return result.exit_code, report


@pytest.mark.parametrize("options", [[], ["--deep"], ["--fix"]])
def test_a_sound_log_is_clean(run: Run, sealed_log: Path, options: list[str]) -> None:
    """Nothing is found, everything was compared, the exit code is 0."""
    code, report = reconcile(run, sealed_log, *options)
    assert (code, report["findings"], report["repairs"], report["complete"]) == (0, [], [], True)
    assert (report["segments"], report["files"], report["deep"]) == (4, 4, "--deep" in options)
    assert report["bytes_actual"] == report["bytes_expected"] > 0
    assert report["started"] <= report["completed"]


def test_damage_is_found_with_exit_code_3(run: Run, sealed_log: Path) -> None:
    """Missing, cut and foreign files are found, each with where it belongs."""
    first, second, _ = segment_files(sealed_log)
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    (second.parent / "stranger").write_bytes(b"x")
    code, report = reconcile(run, sealed_log)
    assert code == 3
    assert [(f["kind"], f["topic"], f["number"]) for f in report["findings"]] == [
        ("missing", "orders", 0),
        ("size_mismatch", "orders", 1),
        ("untracked", "orders", None),
    ]
    text = run("reconcile", sealed_log)
    assert (text.exit_code, "size_mismatch" in text.stdout) == (3, True)


def test_content_is_compared_only_when_deep(run: Run, sealed_log: Path) -> None:
    """A changed byte is found by --deep alone."""
    file = segment_files(sealed_log)[0]
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    assert reconcile(run, sealed_log)[0] == 0
    code, report = reconcile(run, sealed_log, "--deep")
    assert (code, [finding["kind"] for finding in report["findings"]]) == (3, ["content_mismatch"])


def test_fix_repairs_what_it_can_prove(run: Run, sealed_log: Path) -> None:
    """Strangers go to quarantine; afterwards it is clean, and the exit code of the repair is 0."""
    (sealed_log / "segments" / "stranger").write_bytes(b"x")
    code, report = reconcile(run, sealed_log, "--fix")
    assert (code, report["mode"]) == (0, "fix")
    assert report["repairs"] == [{"action": "quarantined", "path": "segments/stranger"}]
    assert (sealed_log / "quarantine" / "stranger").exists()
    assert reconcile(run, sealed_log)[0] == 0


def test_what_cannot_be_fixed_is_left_with_exit_code_3(run: Run, sealed_log: Path) -> None:
    """A segment that is gone stays a finding, also with --fix."""
    segment_files(sealed_log)[0].unlink()
    code, report = reconcile(run, sealed_log, "--fix")
    assert (code, [finding["kind"] for finding in report["findings"]]) == (3, ["missing"])


def test_it_works_beside_an_owner(run: Run, owner: Owner, log: Path) -> None:
    """Looking needs no ownership; repairing is done by the owner."""
    assert reconcile(run, log)[0] == 0
    assert reconcile(run, log, "--fix")[0] == 0


@pytest.fixture
def shipped_log(sealed_log: Path, tmp_path: Path) -> Path:
    """The sealed log, shipped to a directory beside it."""
    with holdfast.open(sealed_log, store=tmp_path / "store") as opened:
        opened.ship(20)
    return sealed_log


def objects_of(store: Path, folder: str) -> list[Path]:
    return sorted(path for path in (store / "topics/orders/0" / folder).iterdir())


@pytest.mark.parametrize("options", [[], ["--deep"]])
def test_remote_compares_the_store_that_the_log_is_shipped_to(run: Run, shipped_log: Path, options: list[str]) -> None:
    """No setting is needed: the log knows where it is shipped to."""
    code, report = reconcile(run, shipped_log, "--remote", *options)
    assert (code, report["findings"], report["complete"], report["where"]) == (0, [], True, "store")
    assert report["segments"] == 4


def test_damage_on_the_store_is_found_with_exit_code_3(run: Run, shipped_log: Path, tmp_path: Path) -> None:
    """With the object's key; the log's own files are not what is looked at."""
    segment, listed = objects_of(tmp_path / "store", "segments")[1], objects_of(tmp_path / "store", "_manifest")[2]
    segment.unlink()
    listed.unlink()
    assert reconcile(run, shipped_log)[0] == 0
    code, report = reconcile(run, shipped_log, "--remote")
    assert code == 3
    assert [(f["kind"], f["number"], f["name"], f["where"]) for f in report["findings"]] == [
        ("missing", 1, f"topics/orders/0/segments/{segment.name}", "store"),
        ("missing", 2, f"topics/orders/0/_manifest/{listed.name}", "store"),
    ]
    assert segment.name in run("reconcile", shipped_log, "--remote").stdout


def test_remote_without_a_store_is_refused(run: Run, sealed_log: Path) -> None:
    """There is nothing to compare with; exit code 1, and what to do."""
    result = run("reconcile", sealed_log, "--remote")
    assert (result.exit_code, "HOLDFAST_STORE__URL" in result.stderr) == (1, True)


def test_remote_fix_repairs_the_store_of_an_idle_log(run: Run, shipped_log: Path, tmp_path: Path) -> None:
    """A missing segment that is still here is put back."""
    lost = objects_of(tmp_path / "store", "segments")[0]
    lost.unlink()
    code, report = reconcile(run, shipped_log, "--remote", "--fix")
    assert (code, len(report["repairs"]), lost.exists()) == (0, 1, True)


def test_limit_stops_early_and_says_so(run: Run, sealed_log: Path) -> None:
    """After so many units it stops: the report is not complete, and a note is on stderr."""
    result = run("reconcile", sealed_log, "--limit", 1, "--json")
    (report,) = objects(result.stdout)
    assert (result.exit_code, report["complete"], report["completed"]) == (0, False, None)
    assert "note: stopped after 1 units" in result.stderr
    assert run("reconcile", sealed_log, "--limit", 0).exit_code == 2


def test_a_damaged_database_is_reported(run: Run, sealed_log: Path) -> None:
    """What is wrong with the control rows is reported as well, with exit code 3."""
    tamper(sealed_log, "UPDATE heads SET stamp = zeroblob(32) WHERE number = 0")
    result = run("reconcile", sealed_log)
    assert (result.exit_code, "error: a head does not match its stamp" in result.stderr) == (3, True)


def test_a_busy_log_has_no_findings(run: Run, sealed_log: Path) -> None:
    """While its owner appends, seals and expires, reconciling from outside finds nothing."""
    with holdfast.open(sealed_log) as opened:
        opened.set_retention("orders", records_max=20)
        for _ in range(10):
            opened.topic("orders").append_batch([b"x"] * 10)
            opened.seal("orders")
            opened.retain()
            code, report = reconcile(run, sealed_log, "--deep")
            assert (code, report["findings"]) == (0, [])
