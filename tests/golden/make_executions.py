"""The golden executions (docs/formats/0010-executions.md): each kind of entry, a fold, a past written anew, data.

`python -m tests.golden.make_executions` writes `executions/` and `executions-sealed/`, and `executions.json` with what
must be read of them. Like all golden files they are made once for a version of the format, and kept.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
from tests.executions.by_hand import append, finish, fold_now, opened

import holdfast
from holdfast import Keyring, Log, Settings
from holdfast.execution.journal.entries import (
    Administered,
    AmbiguityResolved,
    AttemptFailed,
    EffectIntent,
    Ended,
    Entry,
    Folded,
    Forked,
    Heartbeat,
    Opened,
    PromiseCreated,
    PromiseResolved,
    SignalSent,
    SignalTaken,
    StepResult,
    TimerArmed,
    TimerFired,
    VersionMarked,
    encode_block,
    encode_entry,
)
from holdfast.execution.journal.execution_id import derived_id
from holdfast.execution.journal.execution_record import in_order
from holdfast.execution.steps import claim_check
from holdfast.testing.manual_clock import ManualClock

HERE = Path(__file__).parent
SETTINGS = Settings.from_mapping({"segments": {"seal_on_close": False}})
RING = Keyring({"golden": bytes(range(32))})
LARGE = bytes(range(100)) + b"and more"
KEY, GUARDED = b"k" * 32, "exactly_once_guarded"

EVERY: tuple[Entry, ...] = (
    StepResult("a", KEY, "idempotent", b"z", 2_000),
    StepResult("b/c#2", KEY, GUARDED, b"\x92\xa1x\xc0", 3_000, 2_500, 3, True, b""),
    EffectIntent("pay", KEY, GUARDED, 4_000),
    PromiseCreated("approval", b"p" * 16, b"h" * 32, 5_000),
    PromiseResolved(b"p" * 16, b"\xc3", 6_000, False),
    TimerArmed("nap", b"t" * 16, 9_000, 7_000),
    TimerFired("nap", b"t" * 16, 9_001),
    SignalSent("go", b"s" * 16, b"\x01", 10_000),
    SignalTaken("go", b"s" * 16, 11_000),
    AttemptFailed("flaky", 1, "OSError", 12_000, 13_000),
    AmbiguityResolved("pay", KEY, GUARDED, "skip", 14_000),
    VersionMarked("v2", 2, 15_000),
    Opened(7, 16_000, 1),
    Ended("failed", b"\xc0", 17_000),
    Heartbeat("long", b"\x32", 18_000),
    Administered("canceled", "by hand", 19_000),
    Forked(b"f" * 16, 20_000),
    Folded(3, 3, (encode_entry(StepResult("old", KEY, "idempotent", b"y", 1)),), 21_000, 1),
)
"""One of each kind."""


def make_log(path: Path, keyring: Keyring | None) -> None:
    """A log with executions of every shape."""
    clock = ManualClock(seed=10)
    with (
        patch("os.getpid", return_value=4242),
        patch.object(claim_check, "PART_BYTES", 64),
        holdfast.open(path, settings=SETTINGS, keyring=keyring, clock=clock) as log,
    ):
        room = log._executions.room()
        whole = room.live.open(derived_id("golden", "whole"), "import")
        for entry in EVERY:
            clock.advance(1)
            whole.store.write(whole.journal, entry).result()
        reference, operations, size = claim_check.put_aside(log._journal, whole.id, "large", LARGE)
        large = StepResult("large", KEY, "idempotent", b"", 22_000, reference=reference)
        whole.store.write(whole.journal, large, operations, size=size).result()
        room.live.release(whole)
        _ended(log, "folded", ("one", "two"), fold=True)
        rewound = _ended(log, "rewound", ("first", "second"), fold=False)
        log.executions.rewind(rewound, before="second", repeat_guarded=True)


def _ended(log: Log, name: str, paths: tuple[str, ...], *, fold: bool) -> Any:
    execution = derived_id("golden", name)
    opened(log, name, execution)
    for path in paths:
        append(log, execution, EffectIntent(path, KEY, GUARDED, 1))
        append(log, execution, StepResult(path, KEY, "idempotent", path.encode(), 2))
    if fold:
        fold_now(log, execution)
        append(log, execution, StepResult("behind", KEY, "idempotent", b"", 3))
    finish(log, execution, "completed")
    return execution


def make(target: Path) -> None:
    """Write the logs, and what must be read of them."""
    expected: dict[str, Any] = {
        "every": [encode_entry(entry).hex() for entry in EVERY],
        "block": encode_block(derived_id("golden", "whole"), 5, EVERY).hex(),
    }
    for name, ring in (("executions", None), ("executions-sealed", RING)):
        shutil.rmtree(target / name, ignore_errors=True)
        make_log(target / name, ring)
        with holdfast.open(target / name, settings=SETTINGS, keyring=ring, read_only=True) as log:
            expected[name] = stored(log)
    (target / "executions.json").write_text(json.dumps(expected, indent=1) + "\n")


def stored(log: Log) -> dict[str, Any]:
    """All that is kept of executions, as JSON has it."""
    store = log._executions._stored()
    found = {}
    for execution, row in sorted(store.rows.copy().items()):
        blocks, journal = store.load(execution)
        entries = [(type(entry).__name__, entry) for entry in in_order(blocks)]
        found[str(execution)] = {"row": row, "entries": entries, "next": journal.next_entry}
    made: dict[str, Any] = json.loads(msgspec.json.encode(found))
    return made


if __name__ == "__main__":
    make(HERE)
