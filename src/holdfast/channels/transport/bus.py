"""A network in one process, as bad as you like: for tests and demonstrations.

Whatever a member sends, every other member may get: late, twice, out of order, or not at all. Chance comes from a seed,
and time passes only by `deliver`, in whatever unit the delays are given: there are no threads and no clock, and the
same calls give the same deliveries. Members may come and go, and be split into groups that do not hear each other: a
packet is lost if its sender and its receiver are apart when it is sent, or when it would arrive.

Not thread safe. A receive function may send, join and leave; what it raises reaches the caller that lets time pass, and
the packet counts as delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from random import Random  # noqa: TID251 - from a seed, so that it repeats

import msgspec

from holdfast.channels.participant import Channels
from holdfast.channels.transport.link import Link
from holdfast.errors import Invalid


class BusStats(msgspec.Struct, frozen=True):
    """Counters of a bus; a packet is one message to one member."""

    sent_total: int
    """Messages."""
    delivered_total: int
    """Packets that arrived."""
    lost_total: int
    """Packets that did not."""
    duplicated_total: int
    """Packets that arrived twice."""
    cut_total: int
    """Packets lost to a split."""
    absent_total: int
    """Packets to members that had left."""
    overflowed_total: int
    """Packets lost because too many were under way."""
    under_way: int
    """Packets that are to arrive."""


class Bus:
    """A broadcast network with a seed.

    >>> bus = Bus(seed=7, loss=0.2, duplication=0.1)
    >>> heard = []
    >>> bus.join("alice", heard.append)
    >>> bus.join("bob", heard.append)
    >>> bus.send("alice", b"hello")
    >>> bus.drain()
    1
    >>> heard
    [b'hello']
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        loss: float = 0.0,
        duplication: float = 0.0,
        reordering: float = 0.0,
        delay: int = 1,
        reordering_delay: int = 100,
        packets_max: int = 1_000_000,
    ) -> None:
        """Shares of packets that are lost, doubled, and delayed for up to `reordering_delay` more than `delay`."""
        shares = {"loss": loss, "duplication": duplication, "reordering": reordering}
        wrong = [f"{name}={share}" for name, share in shares.items() if not 0 <= share <= 1]
        least = {"delay": (delay, 0), "reordering_delay": (reordering_delay, 1), "packets_max": (packets_max, 1)}
        wrong += [f"{name}={number}" for name, (number, lowest) in least.items() if number < lowest]
        if wrong:
            raise Invalid(
                f"there is no such network {' '.join(wrong)}",
                hint="shares lie between 0 and 1, delays are not negative",
            )
        self._random = Random(seed)
        self._loss, self._duplication, self._reordering = loss, duplication, reordering
        self._delay, self._reordering_delay, self._packets_max = delay, reordering_delay, packets_max
        self._members: dict[str, Callable[[bytes], object]] = {}
        self._groups: dict[str, int] = {}
        self._queue: list[tuple[int, int, str, str, bytes]] = []
        """Due time, number, sender, receiver, message."""
        self._number = 0
        self.now = 0
        self._sent = self._delivered = self._lost = self._duplicated = self._cut = self._absent = self._overflowed = 0

    # -- members ------------------------------------------------------------------------------------------

    def join(self, name: str, receive: Callable[[bytes], object]) -> None:
        """Hear what others send; packets that were under way to a member of this name arrive, too."""
        if name in self._members:
            raise Invalid(
                f"a member of that name is already there name={name!r}", hint="leave() first, or use another name"
            )
        self._members[name] = receive

    def leave(self, name: str) -> None:
        """Hear nothing any more; one who is not here has left."""
        self._members.pop(name, None)

    def connect(self, channels: Channels) -> Link:
        """Join with channels, under their participant's name; what they send and what is due goes over this bus."""
        name = channels.participant_id
        link = Link(channels, lambda data: self.send(name, data))
        self.join(name, link.receive)
        return link

    def split(self, groups: Iterable[Iterable[str]]) -> None:
        """Let only members of the same group hear each other; those that no group names are one more. Replaces."""
        self._groups = {name: number for number, group in enumerate(groups, 1) for name in group}

    def heal(self) -> None:
        """Let everybody hear everybody again."""
        self._groups = {}

    def _apart(self, sender: str, receiver: str) -> bool:
        return self._groups.get(sender, 0) != self._groups.get(receiver, 0)

    # -- sending and delivering ---------------------------------------------------------------------------

    def send(self, sender: str, data: bytes) -> None:
        """Send a message to all other members of now."""
        self._sent += 1
        for receiver in self._members:
            if receiver == sender:
                continue
            if self._apart(sender, receiver):
                self._cut += 1
            elif self._random.random() < self._loss:
                self._lost += 1
            else:
                self._put(sender, receiver, data)
                if self._random.random() < self._duplication:
                    self._duplicated += 1
                    self._put(sender, receiver, data)

    def _put(self, sender: str, receiver: str, data: bytes) -> None:
        if len(self._queue) >= self._packets_max:
            self._overflowed += 1
            return
        due = self.now + self._delay
        if self._random.random() < self._reordering:
            due += self._random.randint(1, self._reordering_delay)
        self._number += 1
        heappush(self._queue, (due, self._number, sender, receiver, data))

    def step(self) -> bool:
        """Let time pass until the next packet arrives; False when none is under way."""
        if not self._queue:
            return False
        due, _, sender, receiver, data = heappop(self._queue)
        self.now = max(self.now, due)
        receive = self._members.get(receiver)
        if receive is None:
            self._absent += 1
        elif self._apart(sender, receiver):
            self._cut += 1
        else:
            self._delivered += 1
            receive(data)
        return True

    def deliver(self, until: int) -> int:
        """Let time pass until then, with everything that arrives; returns how many packets did, lost ones included."""
        steps = 0
        while self._queue and self._queue[0][0] <= until:
            self.step()
            steps += 1
        self.now = max(self.now, until)
        return steps

    def drain(self, packets_max: int = 1_000_000) -> int:
        """Let time pass until nothing is under way, or so many packets have arrived; returns how many did."""
        steps = 0
        while steps < packets_max and self.step():
            steps += 1
        return steps

    def stats(self) -> BusStats:
        """Counters."""
        return BusStats(
            self._sent,
            self._delivered,
            self._lost,
            self._duplicated,
            self._cut,
            self._absent,
            self._overflowed,
            len(self._queue),
        )
