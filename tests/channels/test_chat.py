"""The chat of examples/: two real processes, killed with kill -9, show everything and lose nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import Queue

import pytest

import holdfast
from holdfast import Keyring
from tests.channels.test_udp import SOON, free_ports

pytestmark = pytest.mark.crash

CHAT = Path(__file__).parents[2] / "examples" / "chat.py"


class Screen:
    """One participant at its terminal."""

    def __init__(self, name: str, directory: Path, port: int, peer: int, *more: str) -> None:
        self.directory = directory / name
        self._command = [
            sys.executable, str(CHAT), name, "--log", str(self.directory), "--bind", f"127.0.0.1:{port}",
            "--peer", f"127.0.0.1:{peer}", *more,
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, args=[self.process, self.lines])
        self._reader.start()

    def _read(self, process: subprocess.Popen[str], lines: Queue[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line.rstrip("\n"))

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def until(self, *wanted: str) -> list[str]:
        """What is shown until all of these were."""
        shown: list[str] = []
        while not set(wanted) <= set(shown):
            shown.append(self.lines.get(timeout=SOON))
        return shown

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self._end()

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._end()
        assert self.process.returncode == 0

    def _end(self) -> None:
        self.process.wait(SOON)
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass

    def delivered(self) -> list[bytes]:
        with holdfast.open(self.directory) as log:
            return [record.payload for record in log.topic("_channels").read() if record.kind == "delivered"]


def test_a_chat_survives_kill_nine_of_either_and_shows_everything_once(tmp_path):
    """Said while the other is dead, acknowledged, shown as history after a restart, in order."""
    ports = free_ports(2)
    alice, bob = Screen("alice", tmp_path, *ports), Screen("bob", tmp_path, *reversed(ports))
    alice.say("one")
    bob.until("alice: one")
    bob.say("two")
    alice.until("you: one", "✓ one", "bob: two")
    bob.kill()
    alice.say("three")
    alice.say("four")
    alice.until("you: four")
    alice.kill()
    bob.start()
    assert bob.until("you: two")[:3] == ["-- said before --", "alice: one", "you: two"]
    bob.say("five")
    alice.start()
    shown = bob.until("alice: three", "alice: four", "✓ five")
    assert shown.index("alice: three") < shown.index("alice: four")
    again = alice.until("✓ three", "✓ four", "bob: five")
    assert again[0] == "-- said before --"
    assert [line for line in again if line.startswith(("you:", "bob:"))] == [
        "you: one",
        "bob: two",
        "you: three",
        "you: four",
        "bob: five",
    ]
    alice.leave()
    bob.leave()
    assert alice.delivered() == [b"two", b"five"]
    assert bob.delivered() == [b"one", b"three", b"four"]


def test_a_chat_with_a_key_is_heard_by_those_who_have_it_and_goes_on_after_kill_nine(tmp_path):
    """And a log that talked under a key does not go on without."""
    Keyring.generate("2026-11").save(tmp_path / "room.keys")
    ports, key = free_ports(2), ("--key", f"file:{tmp_path / 'room.keys'}")
    alice, bob = Screen("alice", tmp_path, *ports, *key), Screen("bob", tmp_path, *reversed(ports), *key)
    alice.say("one")
    bob.until("alice: one")
    bob.kill()
    alice.say("two")
    bob.start()
    bob.until("alice: two")
    bob.kill()
    alice.leave()
    without = Screen("bob", tmp_path, *reversed(ports))
    assert without.process.wait(SOON) != 0
    assert without.process.stderr is not None
    assert "used with a key" in without.process.stderr.read()
    without._end()
    assert bob.delivered() == [b"one", b"two"]
