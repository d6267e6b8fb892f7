"""What a hostile directory holds never reaches a terminal as an order: not in words, JSON, warnings or errors.

By an attacker's means only: a database and files that somebody else wrote, looked at by processes of the command line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import Settings

pytestmark = pytest.mark.disk

ORDERS = (
    "\x1b]0;owned\x07\x1b[2J\x7f"  # C0: a title, a cleared screen; DEL
    "\x85\x90\x9b31m\x9d"  # C1: next line, device control, CSI and OSC in one character
    "\u2028\u2029"  # line and paragraph separators
    "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"  # direction
    "\ufeff\u200b\u200c\u200d\u2060\u00ad\U000e0041"  # nothing to be seen
)
NAME = f"t{ORDERS}\nerror: forged"
MAIN = "from holdfast.cli import main; main()"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A log in a directory with a name like that, with records like that, whose database was then edited."""
    path = tmp_path / f"dir{ORDERS}"
    settings = Settings.from_mapping({"segments": {"seal_on_close": False}})
    with holdfast.open(path, settings=settings) as log:
        log.topic("kept").append(ORDERS.encode(), key=ORDERS.encode(), kind=ORDERS, headers={ORDERS: b"v"})
        log.topic("t").append(b"x")
        log._journal.spaces.change("s", [(b"k", 0, b"x")], timeout=10).result()
    connection = apsw.Connection(str(path / "durable.db"))
    connection.execute("UPDATE topics SET name=? WHERE name='t'", (NAME,))
    connection.execute("UPDATE spaces SET name=?", (f"channel/{NAME}".encode(),))
    connection.close()
    return path


def run(*arguments: object, **env: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", MAIN, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, timeout=100, env={**os.environ, **env}, stdin=subprocess.DEVNULL
    )


def check_tame(found: subprocess.CompletedProcess[bytes]) -> None:
    """Nothing but characters that print, and line ends; no line that the attacker began."""
    for stream in (found.stdout, found.stderr):
        for line in stream.decode().split("\n"):
            assert line.isprintable(), (found.args[3:], line)
            assert not line.startswith("error: forged"), found.args[3:]


def check_json(data: bytes) -> list[object]:
    return [json.loads(line) for line in data.decode().split("\n") if line]


def test_no_verb_passes_orders_on(hostile: Path) -> None:
    """Names, keys, kinds, payloads, paths and error texts of a hostile log come out escaped, in words and in JSON."""
    log = str(hostile)
    calls = [
        ["status", log], ["status", log, "--json"], ["topics", log, "--json"], ["inspect", log, "--payloads"],
        ["inspect", log, "--json"], ["reconcile", log], ["read", log, NAME], ["read", log, NAME, "--json"],
        ["append", log, NAME, "x"], ["rebuild", log, "--yes"], ["restore", hostile.as_uri(), log + NAME, "--yes"],
    ]  # fmt: skip
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(lambda call: run(*call), calls):
            check_tame(found)
            if "--json" in found.args:
                check_json(found.stdout)
    debug = run("read", hostile, NAME, HOLDFAST_DEBUG="1")
    check_tame(debug)


def test_the_hostile_log_is_reported(hostile: Path) -> None:
    """The warnings are there, each on its one line, so the tests above look at something."""
    found = run("read", hostile, "kept")
    check_tame(found)
    warnings = [line for line in found.stderr.decode().split("\n") if line.startswith("warning: damaged log")]
    assert any(r"\x1b]0;owned\x07" in line for line in warnings)
    assert any(r"\nerror: forged" in line for line in warnings)


def test_json_keeps_its_values(hostile: Path) -> None:
    """An escape in JSON is the character that it stands for: its parser has what was stored."""
    found = run("read", hostile, "kept", "--json")
    check_tame(found)
    (record,) = check_json(found.stdout)
    assert isinstance(record, dict)
    assert (record["kind"], list(record["headers"])) == (ORDERS, [ORDERS])
