"""Members who are away for longer than history lasts: they catch up, soon, and nobody hears anything twice."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.channels import ChannelSettings
from tests.channels.room import Room

pytestmark = pytest.mark.unit

both = pytest.mark.parametrize("dialect", ["nim", "rfc"])
TINY = ChannelSettings(history_max=20, bloom_capacity=1_000)


def carol_misses(room: Room, count: int) -> None:
    """What the two others say, after all three have talked."""
    room.talk(room.members, 30)
    room.away("carol")
    room.talk(("alice", "bob"), count, every_ms=50)
    room.away()


@both
def test_who_missed_more_than_history_has_it_all_within_a_minute(dialect):
    """Default settings, 1100 messages missed: those in history, and those that only the log has."""
    room = Room(("alice", "bob", "carol"), dialect=dialect)
    room.talk(("alice", "bob", "carol"), 30)
    room.away("carol")
    room.talk(("alice", "bob"), 1_100)
    room.away()
    assert room.catch_up(60_000) > 0
    assert len(room["carol"].channel.history()) == 1_000
    room.talk(("carol", "alice"), 10)
    room.judge()


def test_absences_of_three_histories_in_turn():
    """Each is away once, and comes back to people who were away themselves."""
    room = Room(("alice", "bob", "carol", "dave"), settings=TINY)
    for absent in ("alice", "bob", "carol", "dave"):
        room.away(absent)
        room.talk((name for name in room.members if name != absent), 60)
        room.away()
        room.catch_up(60_000)
    room.judge()


def test_several_who_were_away_at_once_and_apart():
    """Two lack the same; a third lacks something else, and has what nobody else has."""
    room = Room(("alice", "bob", "carol", "dave", "erin"), settings=TINY)
    room.talk(room.members, 10)
    room.away("carol", "dave", "erin")
    for _ in range(70):
        room.talk(("alice", "bob"), 1)
        room.talk(("erin",), 1)
    room.away()
    room.catch_up(90_000)
    room.judge()


@pytest.mark.parametrize("pause", [700, 2_300])
def test_restarts_while_behind_lose_nothing_and_repeat_nothing(pause):
    """Of who catches up and of those who help, from what the disk has."""
    room = Room(("alice", "bob", "carol"), settings=ChannelSettings(history_max=50, bloom_capacity=1_000))
    room.talk(room.members, 9)
    room.away("carol")
    room.talk(("alice", "bob"), 400, every_ms=50)
    room.away()
    room["carol"].restart()
    for _ in range(12):
        room.run(pause)
        room["carol"].restart()
        room["alice"].restart()
    room.catch_up(120_000)
    room.judge()


def test_packets_are_lost_on_the_way():
    """One in five, in both directions: it takes longer."""
    room = Room(("alice", "bob", "carol"), loss=0.2, settings=ChannelSettings(history_max=50, bloom_capacity=1_000))
    room.away("carol")
    room.talk(("alice", "bob"), 300)
    room.away()
    room.catch_up(300_000)
    room.judge(rest_ms=3_000_000)


def test_the_holder_of_a_message_answers_for_senders_who_are_gone():
    """All that carol lacks was said by bob, who has left for good; alice heard it."""
    room = Room(("alice", "bob", "carol"), settings=TINY)
    room.away("carol")
    room.talk(("bob",), 300)
    room.away("bob")
    room.run(40_000)
    while room["carol"].heard < room.sent:
        room.run(1_000)
        assert room.now < 200_000
    room.judge()


def test_history_of_one_message_is_enough():
    """What is known is not what is at hand. That one message is missing is no sign of more: it is asked for in time."""
    room = Room(("alice", "bob", "carol"), settings=ChannelSettings(history_max=1, bloom_capacity=1_000))
    room.talk(room.members, 30)
    room.away("carol")
    room.talk(("alice", "bob"), 40)
    room.away()
    room.catch_up(500_000)
    room.judge()


@pytest.mark.parametrize(("speakers", "dialect"), [(12, "nim"), (12, "rfc"), (50, "rfc")])
def test_speakers_at_once(speakers, dialect):
    """More than a message can name: each message is named by some later one, and found by who was away."""
    names = [f"m{number}" for number in range(speakers)]
    room = Room(names, dialect=dialect, settings=ChannelSettings(history_max=3 * speakers, bloom_capacity=2_000))
    room.away(names[0])
    room.together(names[1:], 4 if speakers > 20 else 12)
    room.away()
    room.catch_up(240_000)
    room.judge()


def test_a_large_group_does_not_storm():
    """Twenty members, three of them away: what catching up costs in packets is a few times what was missed."""
    names = [f"m{number}" for number in range(20)]
    room = Room(names, settings=ChannelSettings(history_max=100, bloom_capacity=1_000))
    room.away(*names[:3])
    room.talk(names[3:], 300)
    before = room.bus.stats().sent_total
    room.away()
    room.catch_up(60_000)
    assert room.bus.stats().sent_total - before < 3 * 300
    room.judge()


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_after_any_absences_everybody_has_everything():
    """Seeds: sizes, histories, losses, absences, restarts."""
    for seed in range(200):
        random = Random(seed)
        names = [f"m{number}" for number in range(random.randint(2, 8))]
        history = random.choice((20, 50, 200))  # more than speak at once
        settings = ChannelSettings(
            history_max=history,
            bloom_capacity=random.choice((2_000, 10_000)),
            causal_history_max=random.choice((2, 10)),
        )
        room = Room(
            names, dialect=random.choice(("nim", "rfc")), loss=random.choice((0.0, 0.1)), seed=seed, settings=settings
        )
        for _ in range(random.randint(1, 4)):
            absent = random.sample(names, random.randint(1, max(1, len(names) - 1)))
            room.away(*absent)
            here = [name for name in names if name not in absent] or names[:1]
            if random.random() < 0.5:
                room.talk(here, 3 * max(10, history))
            else:
                room.together(here, max(2, 3 * history // len(here)))
            if random.random() < 0.5:
                room[random.choice(names)].restart()
            room.away()
            room.run(random.choice((0, 500, 5_000)))
            if random.random() < 0.5:
                room[random.choice(names)].restart()
        try:
            room.catch_up(1_200_000)
            room.judge(rest_ms=5_000_000)
        except AssertionError as error:
            raise AssertionError(f"seed={seed}: {error}") from error


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "beyond",
    [
        {"bloom_capacity": 300},
        {"incoming_max": 100},
        {"incoming_max": 10},
        {"repairs_max": 50},
        {"incoming_max": 1},
        {"incoming_max": 3, "bloom_error_rate": 0.01},  # some that she lacks are named by nobody
    ],
    ids=str,
)
def test_more_is_missed_than_any_buffer_or_filter_holds(beyond):
    """However small they are: what others name to help is asked for first, and has room."""
    room = Room(
        ("alice", "bob", "carol"), settings=ChannelSettings(**{"history_max": 50, "bloom_capacity": 500} | beyond)
    )
    carol_misses(room, 1_500)
    room.catch_up(180_000)
    room.judge()


def test_what_nobody_names_is_asked_for_before_what_waits_for_it():
    """Her filter says by mistake that she has it. Few requests fit, and all were for those that depend on it."""
    settings = ChannelSettings(history_max=50, bloom_capacity=500, incoming_max=20, repairs_max=20)
    room = Room(("alice", "bob", "carol"), settings=settings)
    carol_misses(room, 700)
    room.catch_up(240_000)
    room.judge()


@pytest.mark.soak
def test_default_settings_and_three_times_what_a_filter_holds():
    """Thirty thousand messages, as fast as repairs may go (`repair_bytes_per_s`)."""
    room = Room(("alice", "bob", "carol"))
    carol_misses(room, 30_000)
    room.catch_up(600_000)
    room.judge()
