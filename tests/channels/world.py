"""A group of participants in one process: a bad network, processes that die, disks that refuse, all from one seed.

Participants talk over a `Bus` that loses, doubles, delays and is split at times; they are killed between operations, in
the middle of a commit (before it is kept, or after) and in the middle of a callback, stay away for a while and start
again from what was kept; their disks refuse commits for a while. Timers are run by hand, on clocks that disagree.

What must hold is judged by what was kept (`Disk.notes`, which the log's backend puts into its topic):

- Every message that its sender's disk has kept is kept as delivered by everybody else, exactly once.
- A message's causes come before it, at everybody.
- The application hears of a message at most once in a life, and never again in a later life if the delivery had been
  kept; it misses one only if it was killed between the commit that kept the delivery and the callback.
- After a quiet time all buffers are empty; and they were within their limits all the time.

A message that nobody's disk has kept is nobody's promise: a participant that cannot keep what it sends is not killed
before it can again, and one that is killed while its disk refuses has sent nothing meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Literal

from holdfast import Keyring
from holdfast.channels import Channels, ChannelSettings, MemoryPersistence, MessageReady
from holdfast.channels.keeping.persistence import Commit
from holdfast.channels.keeping.snapshot import ChannelMeta, HistoryUpdate, Note
from holdfast.channels.protocol.state import MARKS_MAX
from holdfast.channels.transport.bus import Bus
from holdfast.channels.transport.link import Link
from holdfast.channels.wire.dialect import DialectName
from holdfast.testing.manual_clock import ManualClock

ROOM = "room"
TICK_MS = 250
QUIET_MS = 600_000
"""How long the group may take to come to rest after the last trouble."""
REST_TICKS = 40
"""Rest is ten seconds in a row in which nothing waits."""

Death = Literal["now", "before commit", "after commit", "in callback"]
DEATHS: tuple[Death, ...] = ("now", "before commit", "after commit", "in callback")


class Killed(BaseException):
    """The process is gone; no handler of errors sees it."""


class Disk(MemoryPersistence):
    """What survives; remembers all notes that were ever kept, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[Note] = []
        self.delivered: set[str] = set()
        self.sent: set[str] = set()
        self.newest: set[str] = set()
        """Delivered by the last commit."""
        self.dying: Death = "now"
        self.causes: dict[str, list[str]] = {}
        """Of every message that was ever kept here: what it named."""

    def commit(
        self, channel_id: str, meta: ChannelMeta, update: HistoryUpdate, *, reissue: bool = False
    ) -> Commit | None:
        self.calls.clear()
        if self.dying == "before commit":
            raise Killed
        super().commit(channel_id, meta, update, reissue=reissue)
        self.notes += update.notes
        for message in update.append:
            self.causes[message.message_id] = [entry.message_id for entry in message.causal_history]
        for note in update.notes:  # what came and went in one step is in no history
            if note.kind == "delivered":
                self.causes[note.message_id] = [entry.message_id for entry in note.causes]
        self.newest = {note.message_id for note in update.notes if note.kind == "delivered"}
        self.delivered |= self.newest
        self.sent.update(note.message_id for note in update.notes if note.kind == "sent")
        if self.dying == "after commit":
            raise Killed
        return None


class Skewed:
    """A clock that is wrong by a constant."""

    def __init__(self, clock: ManualClock, ahead_ms: int) -> None:
        self._clock, self._ahead_us = clock, ahead_ms * 1000
        self.monotonic, self.random_bytes = clock.monotonic, clock.random_bytes

    def now_us(self) -> int:
        return self._clock.now_us() + self._ahead_us


class Participant:
    """One process, its disk, and its lives."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.disk = Disk()
        self.clock = Skewed(world.clock, world.random.randint(-3_000, 3_000))
        self.channels: Channels | None = None
        self.link: Link | None = None
        self.heard: set[str] = set()
        self.heard_in_life: set[str] = set()
        self.kept_at_start: set[str] = set()
        self.unheard: set[str] = set()
        """Kept as delivered, but killed before telling."""
        self.given_up: list[str] = []
        self.back_at = 0
        self.ill_until = 0
        self.ill_till_death = False
        self.to_send = 0
        self.tasks = [
            (interval, world.random.randrange(0, interval, TICK_MS), run)
            for interval, run in (
                (500, Channels.run_repair_sweep),
                (2_000, Channels.run_buffer_sweep),
                (world.sync_interval_ms, Channels.run_periodic_sync),
            )
        ]

    @property
    def alive(self) -> bool:
        return self.channels is not None

    # -- life and death -----------------------------------------------------------------------------------

    def start(self) -> None:
        self.heard_in_life = set()
        self.kept_at_start = set(self.disk.delivered)
        self.disk.dying = "now"

        def begin() -> None:
            channels = Channels(
                self.name, self.disk, settings=self.world.settings, clock=self.clock, keys=self.world.keys
            )
            channels.set_callbacks(message_ready=self.ready, message_given_up=self.gave_up)
            kept = self.disk.load_channel(ROOM).meta
            channels.ensure_channel(ROOM, dialect=self.world.dialect)
            room = channels.channel(ROOM)
            here = {*room.history(), *(buffered.message.message_id for buffered in room.incoming())}
            assert here >= {buffered.message.message_id for buffered in kept.incoming}
            assert len(room.outgoing()) == len(kept.outgoing)
            self.channels = channels
            self.link = Link(channels, lambda data: self.world.bus.send(self.name, data))
            self.world.bus.join(self.name, self.receive)

        self.live(begin)

    def live(self, operation: Callable[[], object]) -> None:
        try:
            operation()
        except Killed:
            self.die()

    def die(self) -> None:
        self.world.deaths += 1
        self.channels = self.link = None
        self.world.bus.leave(self.name)
        self.disk.failing_ops.clear()
        self.disk.dying = "now"
        self.ill_until = 0
        self.ill_till_death = False
        self.back_at = self.world.now + self.world.random.choice((0, 1_000, 5_000, 20_000))
        missed = self.disk.delivered - self.heard - self.unheard
        assert missed <= self.disk.newest, f"{self.name} never heard of what an earlier commit had kept"
        self.unheard |= missed

    def fall_ill(self) -> None:
        self.ill_until = self.world.now + self.world.random.randint(1_000, 10_000)
        self.ill_till_death = self.world.random.random() < 0.5
        self.disk.failing_ops.add("commit")

    def recover(self) -> None:
        self.ill_until = 0
        self.disk.failing_ops.clear()
        if self.ill_till_death:
            self.die()

    @property
    def may_die(self) -> bool:
        """Whether everything that it sent is kept."""
        return self.alive and not self.ill_until and self.room.persistence.ok

    # -- talking ------------------------------------------------------------------------------------------

    @property
    def room(self):
        assert self.channels is not None
        return self.channels.channel(ROOM)

    def ready(self, event: MessageReady) -> None:
        message_id = event.message_id
        assert message_id not in self.heard_in_life, f"{self.name} heard of a message twice in one life"
        assert message_id not in self.kept_at_start, f"{self.name} heard again of what it had kept in an earlier life"
        if self.disk.dying == "in callback":
            raise Killed
        self.heard_in_life.add(message_id)
        self.heard.add(message_id)

    def gave_up(self, event: object) -> None:
        self.given_up.append(self.name)

    def receive(self, data: bytes) -> None:
        link = self.link
        if link is not None:
            self.live(lambda: link.receive(data))

    def send(self) -> None:
        link = self.link
        assert link is not None
        self.to_send -= 1

        content = b"%d of %s" % (self.to_send, self.name.encode())
        self.live(lambda: link.send(content, ROOM))

    def tick(self) -> None:
        channels = self.channels
        for interval, phase, run in self.tasks:
            if channels is not None and channels is self.channels and self.world.now % interval == phase:
                self.live(partial(run, channels))

    # -- judging ------------------------------------------------------------------------------------------

    def check_bounds(self) -> None:
        settings, stats, state = self.world.settings, self.room.stats(), self.room.state
        assert stats.history <= settings.history_max
        assert stats.outgoing <= settings.outgoing_max
        assert stats.incoming <= settings.incoming_max
        assert stats.requests <= settings.repairs_max
        assert stats.responses <= settings.repairs_max
        assert len(state.met) <= MARKS_MAX
        assert len(state.synced) <= MARKS_MAX
        assert len(state.filter.ids) <= settings.bloom_capacity * 6 // 5 + 1
        assert len(self.room.persistence.pending) <= 2 * settings.history_max
        assert len(state.waiting) <= settings.incoming_max * settings.causal_history_max
        assert len(state.hints) <= settings.history_max

    def unrest(self) -> str | None:
        """What keeps it from being at rest."""
        if not self.alive or self.ill_until or self.disk.dying != "now" or not self.room.persistence.ok:
            return f"{self.name} is dead, dying or ill"
        stats = self.room.stats()
        counts = {name: getattr(stats, name) for name in ("outgoing", "incoming", "requests", "responses")}
        counts["pending"] = len(self.room.persistence.pending)
        if self.world.all_is_kept:
            counts["lacking"] = len(self.world.sent - self.disk.delivered - self.disk.sent)
        busy = {name: count for name, count in counts.items() if count}
        return f"{self.name} {busy}" if busy else None

    def check_story(self) -> None:
        """Exactly once, and in causal order."""
        seen: set[str] = set()
        for note in self.disk.notes:
            if note.kind not in ("sent", "delivered"):
                continue
            assert note.message_id not in seen, f"{self.name} kept {note.kind} twice"
            late = [cause for cause in self.disk.causes[note.message_id] if cause not in seen]
            assert not late, f"{self.name} has {note.message_id} before {late}"
            seen.add(note.message_id)
        assert seen == self.world.sent
        assert self.heard | self.unheard >= self.disk.delivered

    def check_restart(self) -> None:
        """What a new life starts from is what this one has."""
        assert self.channels is not None
        before = self.room.snapshot(), self.room.history(), set(self.room.state.filter.ids)
        self.channels.close()
        again = Channels(self.name, self.disk, settings=self.world.settings, clock=self.clock, keys=self.world.keys)
        again.ensure_channel(ROOM)
        room = again.channel(ROOM)
        assert (room.snapshot(), room.history()) == before[:2]
        assert set(room.history()) <= before[2]


class World:
    """The group, and its troubles."""

    all_is_kept = True
    """History is long enough for everything."""
    keys: Keyring | None = None
    """What participants share."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.clock = ManualClock(seed=seed)
        self.now = 0
        large = seed % 10 == 0
        self.dialect: DialectName = random.choice(("nim", "rfc"))
        self.sync_interval_ms = 8_000 if large else 4_000
        self.settings = self.choose_settings()
        self.bus = Bus(
            random.getrandbits(32), loss=0.3, duplication=0.1, reordering=0.3, delay=20, reordering_delay=3_000
        )
        self.deaths = self.splits = self.illnesses = 0
        self.trouble_ms = 12_000 if large else 25_000
        size = 20 if large else random.randint(2, 8)
        self.participants = [Participant(self, f"p{number}") for number in range(size)]
        for participant in self.participants:
            participant.to_send = 3 if large else random.randint(1, 10)
            participant.start()

    def choose_settings(self) -> ChannelSettings:
        choice = self.random.choice
        return ChannelSettings(
            bloom_capacity=200,
            history_max=200,
            causal_history_max=choice((2, 5, 10, 200)),
            outgoing_max=50,
            incoming_max=choice((8, 1_000)),
            repairs_max=choice((5, 1_000)),
            resend_interval_ms=4_000,
            sync_interval_ms=self.sync_interval_ms,
            resend_attempts_max=1_000,
            repair_t_min_ms=500,
            repair_t_max_ms=4_000,
            response_groups=choice((1, 1, 3)),
        )

    @property
    def sent(self) -> set[str]:
        return set().union(*(one.disk.sent for one in self.participants))

    def run(self) -> None:
        while self.now < self.trouble_ms or any(one.to_send for one in self.participants):
            self.tick(trouble=self.now < self.trouble_ms)
        self.bus.heal()
        for one in self.participants:
            one.disk.dying = "now"
        deadline = self.now + QUIET_MS
        ticks = 0
        while ticks < REST_TICKS:  # a sync may still tell of something after a pause, where history is short
            for _ in range(8):
                self.tick(trouble=False)
            unrest = self.unrest()
            ticks = 0 if unrest else ticks + 8
            assert self.now < deadline, f"no rest: {unrest}"
        self.check_end()

    def check_end(self) -> None:
        for one in self.participants:
            one.check_story()
            assert not one.given_up, f"{one.name} gave up"
            one.check_restart()

    def unrest(self) -> list[str]:
        return [reason for one in self.participants if (reason := one.unrest())]

    def tick(self, *, trouble: bool) -> None:
        self.now += TICK_MS
        self.clock.advance(TICK_MS / 1000)
        if trouble:
            self.make_trouble()
        for one in self.participants:
            if one.alive:
                one.tick()
            elif self.now >= one.back_at:
                one.start()
            if one.ill_until and self.now >= one.ill_until:
                one.recover()
            if one.alive and one.to_send and not one.ill_till_death and self.random.random() < 0.1:
                one.send()
        self.bus.deliver(until=self.now)
        for one in self.participants:
            if one.alive:
                one.check_bounds()

    def make_trouble(self) -> None:
        self.split_and_heal()
        random = self.random
        for one in self.participants:
            if one.may_die and random.random() < 0.01:
                one.disk.dying = random.choice(DEATHS)
                if one.disk.dying == "now":
                    one.die()
            elif one.may_die and one.disk.dying == "now" and random.random() < 0.01:
                self.illnesses += 1
                one.fall_ill()

    def split_and_heal(self) -> None:
        chance = self.random.random()
        if chance < 0.02:
            self.splits += 1
            groups: list[list[str]] = [[], [], []]
            for one in self.participants:
                self.random.choice(groups).append(one.name)
            self.bus.split(groups)
        elif chance < 0.07:
            self.bus.heal()


class Flood(World):
    """Far more messages than history holds: bounds hold, and what can not be had any more is given up."""

    all_is_kept = False

    def __init__(self, seed: int) -> None:
        super().__init__(seed * 10 + 1)
        for participant in self.participants:
            participant.to_send = 200 // len(self.participants)

    def choose_settings(self) -> ChannelSettings:
        return ChannelSettings(
            bloom_capacity=500,
            history_max=30,
            causal_history_max=5,
            outgoing_max=500,
            incoming_max=20,
            repairs_max=10,
            resend_interval_ms=4_000,
            sync_interval_ms=self.sync_interval_ms,
            repair_t_min_ms=500,
            repair_t_max_ms=4_000,
            lost_after_ms=20_000,
        )

    def make_trouble(self) -> None:
        self.split_and_heal()

    def check_end(self) -> None:
        """That nobody heard anything twice is judged all the time."""
