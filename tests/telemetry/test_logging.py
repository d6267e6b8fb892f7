"""Every line that the library logs has an action, from one list, with its level; and the everyday ones are checked."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import holdfast
from tests.telemetry.logged_actions import logged

pytestmark = pytest.mark.disk

PAGE = (Path(__file__).parents[2] / "docs/reference/logging.md").read_text(encoding="utf-8")
COMPUTED = {
    "seal_failed": {"error", "debug"},
    "shipping_alarm": {"warning", "error", "critical"},
    "table_alarm": {"error"},
    "table_late": {"warning"},
    "worker_run": {"warning", "error"},
    "clock_jump": {"info", "warning"},
    **{f"reconcile_{done}": {"warning"} for done in ("removed", "quarantined", "restored")},
}
"""Actions whose level, or name, is made when they are logged."""


def listed() -> dict[str, set[str]]:
    """The actions of the page, and their levels."""
    found: dict[str, set[str]] = {}
    part = PAGE.partition("\n## Actions\n")[2]
    for actions, levels in re.findall(r"^\| (`.+?`) \| ([a-z/, ]+) \| .+ \|$", part, re.MULTILINE):
        names, several = re.findall(r"`(\w+)`", actions), levels.split(", ")
        assert len(several) in (1, len(names)), actions
        for name, level in zip(names, several * len(names) if len(several) == 1 else several, strict=False):
            assert name not in found, f"{name} is listed twice"
            found[name] = set(level.split("/"))
    return found


def test_every_call_has_an_action_and_the_page_has_it_with_its_level() -> None:
    """And the page has no other."""
    calls = list(logged())
    assert len(calls) > 100
    bare = [call.place for call in calls if not call.actions]
    assert len(bare) == 1, bare
    assert "reconcile_pass.py" in bare[0]  # which makes its action of what it did
    found: dict[str, set[str]] = {}
    for call in calls:
        for action in call.actions:
            found.setdefault(action, set()).add(call.level)
    found.update(COMPUTED)
    page = listed()
    assert set(page) == set(found), set(page) ^ set(found)
    assert {name: levels for name, levels in page.items() if levels != found[name]} == {}


def test_one_line_for_each_open_seal_batch_and_close(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With what a program would filter by, and no payload."""
    caplog.set_level(logging.DEBUG, "holdfast")
    with holdfast.open(tmp_path / "log", store=tmp_path / "store") as log:
        log.topic("orders").append_batch([b"4111-1111"] * 3, partition=0, durability="shipped")
        log.seal()
        log.ship()
    lines = {record.action: record for record in caplog.records if hasattr(record, "action")}
    assert {"opened", "sealed", "shipped", "settled", "closed"} <= set(lines)
    assert (lines["sealed"].topic, lines["sealed"].partition, lines["sealed"].records) == ("orders", 0, 3)
    assert (lines["shipped"].records, lines["shipped"].levelname) == (3, "DEBUG")
    assert (lines["opened"].log, lines["opened"].levelname) == (log.id, "INFO")
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
    assert "4111" not in caplog.text
