"""Groups with members who mean harm: whatever these send, the others deliver everything of each other exactly once.

The world is that of `tests.channels.world`, with its bad network, kills and refusing disks, and a hostile member more,
who hears everything and sends, all the time: times from the future, requests for everything, other content under ids
that he heard, other causes, causes that nobody has, what he heard before, changed and unchanged.

Without a key he is a member. With derived ids nothing that he forges counts; without, the first message with an id
does, and he may be the first: there he does everything else. With a key he is a stranger, and nothing of his is heard.
"""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from holdfast import Keyring
from holdfast.channels import ChannelSettings, HistoryEntry, SdsMessage
from holdfast.channels.wire.derived_ids import with_derived_id
from holdfast.channels.wire.detect import dialect as dialect_named
from holdfast.errors import Invalid
from tests.channels.world import ROOM, World

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("quiet")]

SEEDS = 6
SOAK_SEEDS = 200
KEYS = Keyring({"k1": b"1" * 32})
HOUR_MS = 3600 * 1000


class Mallory:
    """Hears everything and sends what harms most."""

    def __init__(self, world: Hostile, seed: int) -> None:
        self.world = world
        self.random = Random(seed)
        self.wire = dialect_named(world.dialect)
        self.packets: list[bytes] = []
        self.ids: list[str] = []
        self.sent = 0
        world.bus.join("mallory", self.hear)

    def hear(self, data: bytes) -> None:
        self.packets = [*self.packets[-50:], data]
        try:
            message = self.wire.decode(data)
        except Invalid:
            return
        if message.content and message.sender_id != "mallory":
            self.ids = [*self.ids[-200:], message.message_id]
            if self.world.settings.derived_ids and self.random.random() < 0.5:
                self.forge(message)

    def send(self, message: SdsMessage) -> None:
        self.sent += 1
        self.world.bus.send("mallory", self.wire.encode(message))

    def forge(self, message: SdsMessage) -> None:
        """Faster than the network: others may get this before the true one."""
        changes = self.random.choice(
            (
                {"content": b"forged"},
                {"causal_history": (HistoryEntry("what nobody has", b"", "p0"),)},
                {"content": b""},
                {"sender_id": "p1"},
                {"lamport": self.future()},
            )
        )
        self.send(msgspec.structs.replace(message, **changes))

    def future(self) -> int:
        now = self.world.clock.now_us() // 1000
        return (now + self.random.choice((1, 23, 24, 25, 1000)) * HOUR_MS) // self.wire.clock_unit_ms

    def tick(self) -> None:
        asked = tuple(HistoryEntry(one, b"", "p0") for one in self.ids)
        missing = tuple(HistoryEntry(f"none{self.sent}-{number}", b"", "p0") for number in range(3))
        base = SdsMessage(f"{self.random.getrandbits(64):016x}", ROOM, self.future(), b"", "mallory")
        self.send(with_derived_id(base))
        if self.world.now % 10_000 == 0:
            self.send(with_derived_id(msgspec.structs.replace(base, lamport=1, causal_history=missing)))
        self.send(with_derived_id(msgspec.structs.replace(base, lamport=2, repair_request=asked)))
        for packet in self.packets[-3:]:
            at = self.random.randrange(len(packet))
            self.world.bus.send("mallory", packet)
            if self.world.settings.derived_ids or self.world.keys:
                self.world.bus.send("mallory", packet[:at] + bytes([packet[at] ^ 1]) + packet[at + 1 :])


class Hostile(World):
    """A world with Mallory in it, who goes on for a minute after all other trouble: rest is when nobody asks."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed * 10 + 3)  # no large ones
        self.mallory = Mallory(self, seed)

    def choose_settings(self) -> ChannelSettings:
        settings = super().choose_settings()
        return msgspec.structs.replace(settings, derived_ids=True, repairs_max=1_000, incoming_max=1_000)

    def tick(self, *, trouble: bool) -> None:
        if self.now % 1_000 == 0 and self.now < self.trouble_ms + 60_000:
            self.mallory.tick()
        super().tick(trouble=trouble)

    def check_end(self) -> None:
        super().check_end()
        now = self.clock.now_us() // 1000
        assert self.mallory.sent > 20
        for one in self.participants:
            assert not [note for note in one.disk.notes if note.kind == "delivered" and note.content == b"forged"]
            kept = one.disk.load_channel(ROOM).meta
            assert kept.lamport <= (now + 25 * HOUR_MS) // self.mallory.wire.clock_unit_ms


class Usual(Hostile):
    """Without either: Mallory forges and changes nothing, since the first message with an id counts."""

    def choose_settings(self) -> ChannelSettings:
        return msgspec.structs.replace(super().choose_settings(), derived_ids=False)


class Encrypted(Hostile):
    """The same with a key, which Mallory does not have."""

    keys = KEYS

    def choose_settings(self) -> ChannelSettings:
        return World.choose_settings(self)

    def check_end(self) -> None:
        super().check_end()
        assert self.mallory.ids == []


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("kind", [Hostile, Usual, Encrypted])
def test_the_others_deliver_everything_exactly_once(kind, seed):
    kind(seed).run()


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", [Hostile, Usual, Encrypted])
def test_hundreds_of_groups(kind):
    for seed in range(SEEDS, SOAK_SEEDS):
        kind(seed).run()
