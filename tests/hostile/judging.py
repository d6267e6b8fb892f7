"""Runs attempts on spoiled roots in a child process and judges what came of them; a child that dies is replaced.

The judgement is apart from the attempts: a plain root may give other rows (nothing in it is proved against somebody who
recomputes hashes), a keyed one must give the same or refuse.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.hostile.mutations import Mutation, forge, mutate
from tests.hostile.roots import Made, lay_out

PEAK_MAX = 1536 * 2**20
"""Memory that no attempt may pass."""
SECONDS_MAX = 60
REPOSITORY = Path(__file__).parents[2]
OWNERS = ("reconcile", "repair")
"""What the owner of a root does."""


REFUSALS = ("Corrupt", "NotFound", "Unavailable", "StoreUnavailable", "Invalid")
"""Invalid is what a reader says of a `log.json` that is not this log's, and of formats that it does not know."""


class Outcome(NamedTuple):
    """What came of one attempt."""

    action: str
    outcome: str
    """`rows`, the name of an error, `raw` for an exception that is none of ours, `dead` or `hang`."""
    message: str
    rows: int
    digest: str
    peak: int


Judgement = Callable[[Outcome], str]
"""What is wrong with an outcome; empty if nothing is."""


def lives(outcome: Outcome) -> str:
    """A plain root: rows or one of our errors, in bounded memory, by a process that lives."""
    if outcome.outcome in ("raw", "dead", "hang"):
        return f"{outcome.outcome}: {outcome.message}"
    return f"took {outcome.peak >> 20} MiB" if outcome.peak > PEAK_MAX else ""


def tells_the_truth(expected: dict[str, Outcome]) -> Judgement:
    """A keyed root: the same rows as before, or a refusal."""

    def judge(outcome: Outcome) -> str:
        if outcome.outcome == "rows":
            right = expected[outcome.action]
            same = (outcome.rows, outcome.digest) == (right.rows, right.digest)
            return lives(outcome) if same or outcome.action == "reconcile" else f"other rows rows={outcome.rows}"
        return lives(outcome) if outcome.outcome in REFUSALS else str(outcome)

    return judge


class Child:
    """A worker that is started again when it dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any]) -> Outcome:
        """One attempt."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.hostile.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=REPOSITORY,
            )
        process, action = self._process, request["action"]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], SECONDS_MAX)
        line = process.stdout.readline() if ready else ""
        if line:
            answer = {"message": "", "rows": 0, "digest": "", **json.loads(line)}
            return Outcome(action, **answer)
        return self._bury(action, "dead" if ready else "hang")

    def _bury(self, action: str, what: str) -> Outcome:
        process, self._process = self._process, None
        assert process is not None
        process.kill()
        _, errors = process.communicate()
        return Outcome(action, what, f"code={process.returncode} {errors[-600:]}", 0, "", 0)

    def close(self) -> None:
        """Let it go."""
        if self._process is not None:
            self._bury("", "dead")


class Trial:
    """Mutations of one root, each attempted and judged."""

    def __init__(self, made: Made, scratch: Path, keyring: str = "") -> None:
        self._made, self._scratch, self._keyring = made, scratch, keyring
        lay_out(made.objects, made.root)
        self._child = Child()

    @property
    def objects(self) -> dict[str, bytes]:
        """What the root holds while nobody has changed it."""
        return self._made.objects

    def attempt(self, action: str, mutation: Mutation | None = None) -> Outcome:
        """What comes of one action on the root with this change; the root is put right again."""
        root = self._made.root
        if action in OWNERS:  # which write, here and there
            shutil.rmtree(self._scratch / "owner", ignore_errors=True)
            shutil.copytree(self._made.directory, self._scratch / "owner")
        if mutation is not None:
            apply(mutation, root)
        try:
            request = {
                "root": str(root),
                "action": action,
                "keyring": self._keyring,
                "scratch": str(self._scratch),
                "directory": str(self._scratch / "owner"),
            }
            return self._child.ask(request)
        finally:
            if action in OWNERS:
                lay_out(self._made.objects, root)
            elif mutation is not None:
                undo(mutation, root, self._made.objects)

    def run(self, seeds: range, actions: tuple[str, ...], judge: Judgement, kind: str | None = None) -> list[str]:
        """What was wrong, by seed; one action for each seed."""
        wrong = []
        change = mutate if self._made.keyring is None else forge
        for seed in seeds:
            chance = Random(seed)
            mutation = change(chance, self._made.objects, kind)
            outcome = self.attempt(chance.choice(actions), mutation)
            # That an object is not there, no signature can tell: what is left may be an earlier day of the log. And a
            # retirement that was damaged before its files went is undone by a repair: true rows come back.
            is_earlier = mutation.how in ("remove", "special") or (mutation.kind, outcome.action) == (
                "expired",
                "repair",
            )
            problem = (lives if is_earlier else judge)(outcome)
            if problem:
                wrong.append(f"seed={seed} {mutation} {outcome.action}: {problem}")
        return wrong

    def close(self) -> None:
        """End the child."""
        self._child.close()


def apply(mutation: Mutation, root: Path) -> None:
    """Change the files of a root."""
    for key, data in mutation.objects.items():
        path = root / key
        path.unlink(missing_ok=True)
        if data is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    if mutation.special:
        place(mutation.special, root / mutation.key)


def place(special: str, path: Path) -> None:
    """Put something that is no file where one should be."""
    if special == "fifo":
        os.mkfifo(path)
    elif special == "link":
        path.symlink_to("/etc/hostname")
    elif special == "device":
        path.symlink_to("/dev/zero")
    elif special == "loop":
        path.symlink_to(path.name)
    elif special == "folder":
        path.mkdir()
    elif special == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            here = os.getcwd()
            os.chdir(path.parent)  # a socket's name is short
            try:
                made.bind(path.name)
            finally:
                os.chdir(here)
    else:
        with path.open("wb") as stream:  # gigabytes that take no room
            stream.truncate(64 * 2**30)


def undo(mutation: Mutation, root: Path, objects: dict[str, bytes]) -> None:
    """Put the files back."""
    for key in mutation.objects:
        path = root / key
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
        if key in objects:
            path.write_bytes(objects[key])
