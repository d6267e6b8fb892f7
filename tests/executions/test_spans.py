"""Spans and the gauge of executions: what they say, what they never say, and that they are nothing without a provider.

OpenTelemetry takes one provider per process, so each case is a program of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.executions.span_program import SECRET

pytestmark = pytest.mark.disk


def collected(directory: Path, case: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.executions.span_program", str(directory / "log"), case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_each_verb_has_its_span_and_no_payload_is_in_any(tmp_path: Path) -> None:
    """Opened twice, so that something is read back; one append comes too late, and is shown by its type alone."""
    found = collected(tmp_path, "provided")
    spans = found["spans"]
    names = {span["name"] for span in spans}
    assert names >= {f"durable.journal.{verb}" for verb in ("append", "read", "read_segment", "finalize", "prune")}
    opened = [span["attributes"] for span in spans if span["name"] == "durable.backend.open"]
    assert [(one["kind"], one["is_resume"]) for one in opened] == [("pay", False), ("pay", True)]
    steps = [span for span in spans if span["attributes"].get("step_id", "").startswith("charge")]
    assert [(span["attributes"]["entry_kind"], span["status"]) for span in steps] == [("StepResult", "UNSET")] * 2
    refused = [span for span in spans if span["attributes"].get("step_id") == "late"]
    assert [(span["status"], span["why"]) for span in refused] == [("ERROR", "Closed")] * 2
    ended = next(span for span in spans if span["name"] == "durable.journal.finalize")
    assert ended["attributes"]["status"] == "completed"
    assert {span["attributes"]["deleted_count"] for span in spans if span["name"] == "durable.journal.prune"} == {0}
    ranged = [span["attributes"]["count"] for span in spans if span["name"] == "durable.journal.read_segment"]
    assert sum(ranged) == 2  # one that says that it was opened, and a step
    assert SECRET not in json.dumps(spans)
    assert found["threads"] == []  # none outlives what it waits for
    # The gauge tells of logs that are open, each by itself, and of no other.
    assert found["depths"] == [["durable.journal.writer.queue_depth", 0]] * 2
    assert found["depths_after"] == []


@pytest.mark.parametrize("case", ["absent", "no provider"])
def test_without_a_provider_the_verbs_are_the_plain_ones(tmp_path: Path, case: str) -> None:
    """Nothing is on the way of an append: neither where OpenTelemetry is missing, nor where nobody listens."""
    found = collected(tmp_path, case)
    assert (found["is_plain"], found["threads"], found["is_loaded"]) == (True, [], case != "absent")
