"""Strangers who let a channel work for them: repair is answered within a budget, once for everybody, and fairly."""

from __future__ import annotations

import pytest
from tests.unit.channels.network import NOW, ROOM, Machine, entry, message

from holdfast.channels import Channels, ChannelSettings, HistoryEntry, Link, RepairReady
from holdfast.channels.protocol import answer_limits
from holdfast.channels.wire.detect import dialect as dialect_named
from holdfast.testing import ManualClock

pytestmark = pytest.mark.unit

both = pytest.mark.parametrize("dialect", ["nim", "rfc"])
QUICK = {"repair_t_min_ms": 0, "repair_t_max_ms": 1_000, "sync_interval_ms": 1_000}


class Victim:
    """A participant with a history, its transport, and what that has carried."""

    def __init__(self, dialect, count, content_bytes, **settings):
        self.wire = dialect_named(dialect)
        self.clock = ManualClock(NOW * 1000)
        self.channels = Channels(
            "alice", settings=ChannelSettings(dialect=dialect, **{**QUICK, **settings}), clock=self.clock
        )
        self.sent: list[bytes] = []
        self.link = Link(self.channels, self.sent.append)
        self.channels.ensure_channel(ROOM)
        self.ids = [f"{number:03}" for number in range(count)]
        for message_id in self.ids:
            self.link.send(bytes(content_bytes), ROOM, message_id)
        self.sent.clear()
        self.asked = 0

    def ask(self, ids, sender="mallory"):
        self.asked += 1
        requests = [HistoryEntry(message_id, b"", "alice") for message_id in ids]
        request = message(f"ask{self.asked}", lamport=NOW // 1000, sender=sender, content=b"", requests=requests)
        data = self.wire.encode(request)
        assert self.link.receive(data) is not None
        return len(data)

    def pass_s(self, seconds, sweep_s=1):
        for _ in range(0, seconds, sweep_s):
            self.clock.advance(sweep_s)
            self.channels.run_repair_sweep()

    @property
    def bytes(self):
        return sum(map(len, self.sent))

    @property
    def stats(self):
        return self.channels.channel(ROOM).stats()


@both
def test_sixteen_kilobytes_of_requests_do_not_yield_forty_megabytes(dialect):
    """A thousand messages of forty kilobytes, all asked for by one packet, and by sixty, one each second."""
    victim = Victim(dialect, 1_000, 40_000)
    assert victim.ask(victim.ids) < 17_000
    victim.pass_s(5)
    assert 2**20 <= victim.bytes < 2**20 + 6 * 2**16 + 41_000
    for number in range(60):
        victim.ask(victim.ids, f"mallory{number}")
        victim.pass_s(1)
    assert victim.bytes <= 2**20 + 66 * 2**16 + 41_000
    assert victim.stats.repair_bytes_total == victim.bytes
    assert victim.stats.repairs_total == len(victim.sent)
    assert victim.stats.repairs_withheld_total > 0


@both
def test_who_really_missed_a_thousand_messages_has_them_within_a_minute(dialect):
    """The budget is for those who ask for more than anybody can have missed."""
    victim = Victim(dialect, 1_000, 1_024)
    for first in range(0, 1_000, 250):
        victim.ask(victim.ids[first : first + 250], "bob")
    victim.pass_s(59)
    sent = {victim.wire.decode(data).message_id for data in victim.sent}
    assert sent == set(victim.ids)
    assert len(victim.sent) == 1_000
    assert all(not victim.wire.decode(data).bloom_filter for data in victim.sent)


@both
def test_a_message_is_answered_once_in_a_while_no_matter_who_asks(dialect):
    """And again after that: its first answer may have been lost."""
    victim = Victim(dialect, 3, 100, repair_t_min_ms=5_000, repair_t_max_ms=5_000)
    for second in range(40):
        for name in ("mallory", "trudy", "bob"):
            victim.ask(["001"], f"{name}{second}")
        victim.pass_s(1)
    assert 3 <= len(victim.sent) <= 9
    assert victim.stats.repairs_withheld_total >= 2


@both
def test_who_asks_for_the_large_ones_does_not_keep_others_waiting(dialect):
    """Where the budget does not cover all, the small ones go first."""
    victim = Victim(dialect, 500, 40_000)
    small = [victim.link.send(b"small", ROOM) for _ in range(20)]
    victim.sent.clear()
    for first in (0, 250):
        victim.ask(victim.ids[first : first + 250])
    victim.pass_s(5)
    victim.sent.clear()
    victim.ask(small, "bob")
    victim.pass_s(3)
    assert {victim.wire.decode(data).message_id for data in victim.sent} >= set(small)


@both
def test_one_message_makes_us_look_at_a_bounded_number_of_requests(dialect):
    victim = Victim(dialect, 300, 10)
    victim.ask(victim.ids)
    assert victim.stats.responses == 256


@both
def test_an_answer_larger_than_the_budget_goes_all_the_same(dialect, monkeypatch):
    """Else it would never go; what follows waits until that is made good."""
    monkeypatch.setattr(answer_limits, "_BUDGET_S", 0.1)
    victim = Victim(dialect, 2, 50_000, repair_bytes_per_s=10_000, repair_t_max_ms=60_000)
    victim.ask(victim.ids)
    victim.pass_s(1)
    assert len(victim.sent) == 1
    victim.pass_s(3)
    assert len(victim.sent) == 1
    victim.pass_s(3)
    assert len(victim.sent) == 2


@both
def test_a_clock_that_goes_back_neither_fills_the_budget_nor_ends_it(dialect, monkeypatch):
    monkeypatch.setattr(answer_limits, "_BUDGET_S", 2)
    victim = Victim(dialect, 200, 10_000, repair_bytes_per_s=10_000, repair_t_max_ms=600_000)
    victim.ask(victim.ids)
    victim.pass_s(2)
    before = victim.bytes
    victim.clock.jump(-3_600)
    victim.channels.run_repair_sweep()
    victim.pass_s(3)
    assert before < victim.bytes <= before + 50_000


@both
def test_a_forged_copy_answers_for_nobody(dialect):
    """A forger who sends something else under a message's id does not keep us from answering with the true one."""
    victim = Victim(dialect, 1, 100, repair_t_min_ms=0)
    victim.ask(["000"], "bob")
    forged = message("000", lamport=NOW // 1000, sender="alice", content=b"forged")
    assert victim.link.receive(victim.wire.encode(forged)).duplicate
    victim.pass_s(2)
    assert [victim.wire.decode(data).content for data in victim.sent] == [bytes(100)]
    assert victim.stats.forged_total == 1


@both
def test_who_asks_in_our_place_for_ever_does_not_keep_us_from_asking(dialect):
    """He may tell nobody but us."""
    alice = Machine(dialect=dialect, repair_t_min_ms=1_000, repair_t_max_ms=2_000)
    alice.receive(message("b2", "b1"))
    asked = 0
    for number in range(100):
        alice.receive(message(f"s{number}", content=b"", sender="mallory", requests=[entry("b1")]))
        alice.pass_ms(500)
        alice.sweep_repairs()
        sync = alice.sync(f"sync{number}")
        asked += bool(sync is not None and sync.repair_request)
    assert asked >= 5


@both
def test_what_strangers_send_leaves_nothing_that_grows(dialect):
    """Ids, senders, requests and causes without end: every memory of them has a bound."""
    alice = Machine(dialect=dialect, incoming_max=50, repairs_max=50, history_max=50, bloom_capacity=50)
    for number in range(3_000):
        alice.receive(
            message(
                f"e{number}",
                *([f"x{number}"] if number % 3 else []),
                sender=f"s{number}",
                content=b"" if number % 2 else b"content",
                requests=[entry(f"r{number}"), entry(f"e{number - 3}"), entry(f"x{number}")],
            )
        )
        if number % 100 == 0:
            alice.pass_ms(10_000)
            alice.sweep_repairs()
            alice.sweep_buffers()
            alice.sync(f"own{number}")
    alice.check()
    guard = alice.state.guard
    assert len(guard._postponed) <= 2 * 50
    assert len(guard._answered) <= 1_000
    assert len(alice.state.asked) <= 50
    assert len(alice.state.synced) <= 1_000
    assert not [event for event in alice.of_kind(RepairReady) if len(event.data) > 1_000]
