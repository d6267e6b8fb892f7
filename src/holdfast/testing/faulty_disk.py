"""A disk that fails on request and remembers what it had promised.

`FaultyDisk` stands between a program and everything it does to files below one directory: SQLite's I/O,
through a VFS that is the process's default while the disk is active, and holdfast's own few system calls.
It offers two tools, which go together:

*Faults.* Count the steps of a run, then run again with the n-th step failing, for every n:

    for nth in itertools.count(1):
        with FaultyDisk(tmp_path / str(nth), fail=Fault(nth, "eio")) as disk:
            run()                       # and check that what it acknowledged is there
        if not disk.fired:
            break                       # there was no n-th step any more

*Power cuts.* Take a snapshot at any moment, usually at every step, and look at the states in which the
disk may be found afterwards:

    disk.on_step = lambda index, op, name: cuts.append((disk.snapshot(), list(acknowledged)))
    ...
    for cut, promised in cuts:
        for state in cut.states(limit=20, seed=1):
            copy = state.materialise(tmp_path / next(names))      # outside the root
            assert promised <= records_in(copy), state.describe()

Enter the disk before anything below the root is opened, and leave it after everything is closed. What exists on entry
counts as durable. It belongs to the whole process: one at a time, or nested, not side by side in threads. Nothing below
the root is really synced while it is active.

Limits, all of them apsw's or SQLite's:

* An injected error reaches the caller even where SQLite would have swallowed it (a failed checkpoint
  after a commit that is already durable, anything while closing), since apsw raises every exception of a VFS
  method. So an error here means "perhaps", never "it was not written". The other way round holds: no error
  that a real disk would have shown is hidden.
* EIO while reading arrives as `apsw.IOError` (IOERR_CORRUPTFS); a real one may also arrive as `CorruptError`.
* Writes that SQLite makes past its VFS methods are not seen: memory-mapped ones, `SQLITE_FCNTL_CHUNK_SIZE`,
  and the shm file, which is rebuilt after a crash and never part of a state.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import apsw

from holdfast.errors import Invalid
from holdfast.testing.fault import DiskStep, Fault, was_injected
from holdfast.testing.faulty_syscalls import FaultySyscalls
from holdfast.testing.faulty_vfs import FaultyVFS
from holdfast.testing.power_cut import PowerCut
from holdfast.testing.recording import Recording
from holdfast.testing.step_gate import Hook, StepGate


class FaultyDisk:
    """Everything below `root`, with failures and a memory; see the module for how to use it.

    `fail` is the first planned fault. With `record=False` no images are kept and `snapshot` is refused.
    With `syscalls=False` only SQLite's I/O is watched, not holdfast's own.
    """

    def __init__(self, root: Path, *, fail: Fault | None = None, record: bool = True, syscalls: bool = True) -> None:
        self._gate = StepGate(root, fail)
        self._record = record
        self._syscalls = syscalls
        self._recording: Recording | None = None
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        self._gate.root.mkdir(parents=True, exist_ok=True)
        self._recording = recording = Recording(self._gate.root, enabled=self._record)
        with ExitStack() as undo:
            undo.callback(self.disarm)
            self._quieten(undo)
            self._install_vfs(undo, recording)
            if self._syscalls:
                self._install_syscalls(undo, recording)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @property
    def root(self) -> Path:
        """The directory below which everything is watched, resolved."""
        return self._gate.root

    @property
    def steps(self) -> int:
        """How many I/O steps there were so far."""
        return len(self._gate.log)

    @property
    def log(self) -> list[DiskStep]:
        """The steps so far, as (index, op, name)."""
        return list(self._gate.log)

    @property
    def fired(self) -> int:
        """How many steps were failed so far."""
        return len(self._gate.failed)

    @property
    def failed(self) -> list[DiskStep]:
        """The steps that were failed so far."""
        return list(self._gate.failed)

    @property
    def on_step(self) -> Hook | None:
        """Called with (index, op, name) just before each step, on the thread that makes it."""
        return self._gate.hook

    @on_step.setter
    def on_step(self, hook: Hook | None) -> None:
        self._gate.hook = hook

    def arm(self, fault: Fault) -> None:
        """Plan a fault in place of the present one; its `nth` counts from here."""
        self._gate.arm(fault)

    def disarm(self) -> None:
        """Plan no fault: the disk is whole again, though what a failed sync lost stays lost."""
        self._gate.arm(None)

    def snapshot(self) -> PowerCut:
        """This moment: what is durable, and what is under way."""
        if self._recording is None or not self._recording.enabled:
            raise Invalid("this disk has recorded nothing", hint="enter it, with record=True")
        return self._recording.snapshot()

    def _install_vfs(self, undo: ExitStack, recording: Recording) -> None:
        before = apsw.vfs_names()[0]
        name = f"holdfast-faulty-{id(self):x}"
        vfs = FaultyVFS(name, before, self._gate, recording)
        undo.callback(vfs.unregister)
        undo.callback(apsw.set_default_vfs, before)
        apsw.set_default_vfs(name)

    def _install_syscalls(self, undo: ExitStack, recording: Recording) -> None:
        # Imported only now, so that these tools can be used on plain SQLite without the rest of holdfast.
        disk = importlib.import_module("holdfast.disk")
        undo.callback(setattr, disk, "syscalls", disk.syscalls)
        vars(disk)["syscalls"] = FaultySyscalls(self._gate, recording)

    def _quieten(self, undo: ExitStack) -> None:
        """Keep quiet about injected errors that apsw cannot raise, as in a connection that is collected."""
        before: Callable[[sys.UnraisableHookArgs], object] = sys.unraisablehook

        def hook(event: sys.UnraisableHookArgs, /) -> None:
            if not was_injected(event.exc_value):
                before(event)

        undo.callback(setattr, sys, "unraisablehook", before)
        sys.unraisablehook = hook
