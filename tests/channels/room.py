"""A group that talks with the timers that the library has, while members are away: for far longer than history lasts.

Time is simulated, in steps of 50 ms; the network takes 50 ms, and may lose packets. Every member has a disk, and may
start again from it at any moment. What must hold is judged by what was kept, and by what the application heard:
every message is delivered exactly once, after all that it names, at everybody, and has one record; buffers drain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from holdfast.channels import Channels, ChannelSettings
from holdfast.channels.channel import Channel
from holdfast.channels.periodic import HURRY_INTERVAL_MS
from holdfast.channels.protocol.steps import SweepRepairs
from holdfast.channels.transport.bus import Bus
from holdfast.channels.transport.link import Link
from holdfast.channels.wire.dialect import DialectName
from holdfast.testing.manual_clock import ManualClock
from tests.channels.world import Disk

STEP_MS = 50
ROOM = "room"


class Member:
    """One participant, its disk, and what its application heard."""

    def __init__(self, room: Room, name: str, phase: int) -> None:
        self.room, self.name, self.phase = room, name, phase
        self.disk = Disk()
        self.ready_ids: Counter[str] = Counter()
        self.start()

    def start(self) -> None:
        """A process begins, from what the disk has."""
        self.channels = Channels(self.name, self.disk, settings=self.room.settings, clock=self.room.clock)
        self.channels.set_callbacks(message_ready=lambda event: self.ready_ids.update([event.message_id]))
        self.channels.ensure_channel(ROOM, dialect=self.room.dialect)
        self.link = Link(self.channels, lambda data: self.room.bus.send(self.name, data))

    def restart(self) -> None:
        """The process is killed, and another one begins; what was under way to it arrives."""
        self.room.bus.leave(self.name)
        before = self.channel.state.filter
        self.start()
        after = self.channel.state.filter
        assert sorted(after.ids) == sorted(before.ids), "the filter is another one"
        assert after.to_bytes() == before.to_bytes()
        self.room.bus.join(self.name, self.receive)

    def receive(self, data: bytes) -> None:
        self.link.receive(data)

    @property
    def channel(self) -> Channel:
        return self.channels.channel(ROOM)

    def tick(self, now: int) -> None:
        settings, channels = self.room.settings, self.channels
        tasks = (
            (HURRY_INTERVAL_MS, lambda: channels._sweeps.run(SweepRepairs, hurried=True)),
            (settings.repair_sweep_interval_ms, channels.run_repair_sweep),
            (settings.buffer_sweep_interval_ms, channels.run_buffer_sweep),
            (settings.sync_interval_ms, channels.run_periodic_sync),
        )
        for interval, task in tasks:
            if now % interval == self.phase % interval:
                task()

    @property
    def heard(self) -> int:
        """How many messages are delivered here, or sent from here."""
        return len(self.disk.delivered) + len(self.disk.sent)


class Room:
    """A group on a network."""

    def __init__(
        self,
        names: Iterable[str],
        *,
        dialect: DialectName = "nim",
        loss: float = 0.0,
        seed: int = 1,
        settings: ChannelSettings | None = None,
    ) -> None:
        self.dialect, self.settings = dialect, settings or ChannelSettings()
        self.clock = ManualClock(seed=seed)
        self.bus = Bus(seed, delay=STEP_MS, loss=loss)
        self.now = self.sent = 0
        self.members = {name: Member(self, name, STEP_MS * (7 * number % 97)) for number, name in enumerate(names, 1)}
        for name, member in self.members.items():
            self.bus.join(name, member.receive)

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def run(self, ms: int) -> None:
        for _ in range(ms // STEP_MS):
            self.now += STEP_MS
            self.clock.advance(STEP_MS / 1000)
            for member in self.members.values():
                member.tick(self.now)
            self.bus.deliver(until=self.now)

    def away(self, *names: str) -> None:
        """These hear nobody, and nobody hears them; none: everybody is back."""
        self.bus.split([[name] for name in names])

    def say(self, name: str) -> None:
        self.sent += 1
        self.members[name].link.send(b"%d of %s" % (self.sent, name.encode()), ROOM)

    def talk(self, names: Iterable[str], count: int, every_ms: int = 100) -> None:
        """One after the other."""
        speakers = list(names)
        for number in range(count):
            self.say(speakers[number % len(speakers)])
            self.run(every_ms)

    def together(self, names: Iterable[str], times: int, every_ms: int = 200) -> None:
        """All at once: nobody has heard the others when it speaks."""
        for _ in range(times):
            for name in names:
                self.say(name)
            self.run(every_ms)

    def catch_up(self, within_ms: int) -> int:
        """Until everybody has everything; tells how long that took."""
        begin = self.now
        while any(member.heard < self.sent for member in self.members.values()):
            self.run(STEP_MS)
            lacking = {one.name: self.sent - one.heard for one in self.members.values() if one.heard < self.sent}
            assert self.now - begin <= within_ms, f"after {within_ms} ms these still lack messages: {lacking}"
        return self.now - begin

    def judge(self, *, rest_ms: int = 700_000) -> None:
        """Exactly once, causally, everywhere; and at rest."""
        self.away()
        self.run_until_rest(rest_ms)
        for member in self.members.values():
            seen: set[str] = set()
            for note in member.disk.notes:
                if note.kind in ("sent", "delivered"):
                    assert note.message_id not in seen, f"{member.name} has two records of {note.message_id}"
                    late = [cause for cause in member.disk.causes[note.message_id] if cause not in seen]
                    assert not late, f"{member.name} has {note.message_id} before {late}"
                    seen.add(note.message_id)
            assert len(seen) == self.sent, f"{member.name} lacks {self.sent - len(seen)}"
            assert set(member.ready_ids) == member.disk.delivered
            assert set(member.ready_ids.values()) <= {1}, f"{member.name} heard it twice"

    def run_until_rest(self, most_ms: int) -> None:
        end = self.now + most_ms
        while self.now < end:
            self.run(5_000)
            waiting = {
                name: (stats.incoming, stats.requests, stats.responses, stats.outgoing)
                for name, member in self.members.items()
                if any(((stats := member.channel.stats()).incoming, stats.requests, stats.responses, stats.outgoing))
            }
            if not waiting:
                return
        raise AssertionError(f"buffers do not drain: {waiting}")
