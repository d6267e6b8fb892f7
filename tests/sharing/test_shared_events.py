"""Shipping's events in a process that does not ship: as in the one that does, over the death of that one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast import Closed, Invalid
from holdfast.shipping.events import Event, Subscription
from tests.sharing.shared_logs import join, shared

pytestmark = pytest.mark.crash


def shipped(events: Subscription, records: int) -> list[Event]:
    """Events until the store has so many records."""
    found: list[Event] = []
    while sum(event.records for event in found if event.kind == "shipped") < records:
        event = events.get(60)
        assert event is not None
        found.append(event)
    return found


def test_a_member_sees_what_the_owner_ships(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    with shared(tmp_path / "log", store) as (log, _), join(tmp_path / "log", store) as other:
        with log.subscribe() as events, other.subscribe() as others:
            other.topic("orders").append_batch([b"x"] * 7)
            for found in (shipped(events, 7), shipped(others, 7)):
                assert {event.kind for event in found} == {"accepted", "shipped"}
                assert all(event.missed == 0 for event in found)
        with pytest.raises(Closed):
            events.get(0)


def test_subscriptions_go_on_with_the_next_owner_and_say_that_some_may_be_missing(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    with shared(tmp_path / "log", store) as (log, owner):
        events = log.subscribe()
        log.topic("orders").append(b"one")
        shipped(events, 1)
        owner.kill()
        log.topic("orders").append(b"two")
        found: list[Event] = []
        while not any(event.kind == "shipped" for event in found):
            found += shipped(events, 1)
        assert found[0].missed >= 1
        assert all(event.missed == 0 for event in found[1:])

    async def rest() -> list[Event]:
        return [event async for event in events]

    assert all(isinstance(event, Event) for event in asyncio.run(rest()))  # the log is closed: it ends by itself


def test_without_a_store_a_member_is_refused_as_anybody_is(tmp_path: Path) -> None:
    with shared(tmp_path / "log") as (member, _), holdfast.open(tmp_path / "alone") as alone:
        errors = []
        for log in (member, alone):
            with pytest.raises(Invalid) as caught:
                log.subscribe()
            errors.append((caught.value.message, caught.value.hint))
        assert errors[0] == errors[1]
