"""Events: in order, bounded, honest about what is missing; no consumer can hold up the shipper."""

from __future__ import annotations

import asyncio
import gc
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Closed, Corrupt
from holdfast.shipping.events import Event, EventSubscribers
from holdfast.signals import Signal

pytestmark = pytest.mark.unit


def event(number, kind="shipped"):
    return Event(kind, number, number, 1, 100)


def numbers(events):
    return [each.first_seq for each in events]


def in_thread(work):
    """Run it in a thread; a function that waits for the result and raises what it raised."""
    results = []

    def run():
        try:
            results.append((work(), None))
        except BaseException as error:
            results.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()

    def result():
        thread.join(20)
        assert not thread.is_alive()
        value, error = results[0]
        if error is not None:
            raise error
        return value

    return result


def test_events_come_in_the_order_of_publication():
    """All of them, as they were published."""
    subscribers = EventSubscribers(100)
    subscription = subscribers.subscribe()
    published = [event(n, kind) for n in range(10) for kind in ("accepted", "shipped")]
    for each in published:
        subscribers.publish(each)
    subscribers.end(None)
    assert list(subscription) == published


def test_a_subscription_begins_now():
    """What was published before is not seen, and not counted as missed."""
    subscribers = EventSubscribers(10)
    early = subscribers.subscribe()
    subscribers.publish(event(1))
    late = subscribers.subscribe()
    subscribers.publish(event(2))
    subscribers.end(None)
    assert numbers(early) == [1, 2]
    assert list(late) == [event(2)]


def test_every_subscription_gets_every_event():
    """They do not take from each other."""
    subscribers = EventSubscribers(10)
    subscriptions = [subscribers.subscribe() for _ in range(3)]
    subscribers.publish(event(1))
    assert [each.get(0) for each in subscriptions] == [event(1)] * 3


def test_a_full_buffer_drops_the_oldest_and_the_next_event_says_how_many():
    """The count stands on the first event behind the gap, once."""
    subscribers = EventSubscribers(3)
    subscription = subscribers.subscribe()
    for n in range(10):
        subscribers.publish(event(n))
    assert subscription.get(0) == msgspec.structs.replace(event(7), missed=7)
    assert subscription.get(0) == event(8)
    subscribers.publish(event(10))
    subscribers.publish(event(11))
    assert [subscription.get(0) for _ in range(3)] == [event(9), event(10), event(11)]


def test_a_slow_consumer_takes_nothing_from_a_fast_one():
    """Losses are each subscription's own."""
    subscribers = EventSubscribers(2)
    slow, fast = subscribers.subscribe(), subscribers.subscribe()
    for n in range(6):
        subscribers.publish(event(n))
        assert fast.get(0) == event(n)
    assert slow.get(0).missed == 4


@given(st.integers(1, 5), st.lists(st.booleans(), max_size=60))
def test_delivered_and_missed_add_up_to_published(size, steps):
    """Nothing is lost without being counted, and nothing comes twice or out of order."""
    subscribers = EventSubscribers(size)
    subscription = subscribers.subscribe()
    published, expected = 0, 0
    for is_publication in [*steps, *[False] * size]:
        if is_publication:
            subscribers.publish(event(published))
            published += 1
        elif (found := subscription.get(0)) is not None:
            assert found.first_seq == expected + found.missed
            expected = found.first_seq + 1
    assert expected == published


def test_get_answers_none_when_nothing_comes_in_time():
    """A time-out is no error; the subscription goes on."""
    subscribers = EventSubscribers(10)
    subscription = subscribers.subscribe()
    assert subscription.get(0) is None
    assert subscription.get(0.001) is None
    subscribers.publish(event(1))
    assert subscription.get(0) == event(1)


def test_the_end_comes_after_what_was_published():
    """A closed log ends the iteration, not before its last event; get says Closed."""
    subscribers = EventSubscribers(10)
    subscription = subscribers.subscribe()
    subscribers.publish(event(1))
    subscribers.end(None)
    assert numbers(subscription) == [1]
    assert list(subscription) == []
    with pytest.raises(Closed):
        subscription.get(10)


def test_an_error_is_raised_after_what_was_published():
    """Each time anew, as a copy of its own, to iteration and get alike."""
    subscribers = EventSubscribers(10)
    subscription = subscribers.subscribe()
    error = Corrupt("two logs share a root", hint="h")
    subscribers.publish(event(1))
    subscribers.end(error)
    assert next(subscription) == event(1)
    for ask in (lambda: next(subscription), lambda: subscription.get(10), lambda: next(subscription)):
        with pytest.raises(Corrupt, match="share a root") as caught:
            ask()
        assert caught.value is not error


def test_the_first_end_counts_and_nothing_comes_behind_it():
    """A later end or event changes nothing; publishing still does not raise."""
    subscribers = EventSubscribers(10)
    subscription = subscribers.subscribe()
    subscribers.end(None)
    subscribers.end(Corrupt("late"))
    subscribers.publish(event(1))
    assert list(subscription) == []
    assert list(subscribers.subscribe()) == []


@pytest.mark.parametrize("error", [None, Corrupt("over")])
def test_subscribing_after_the_end_ends_at_once(error):
    """It does not wait for what cannot come."""
    subscribers = EventSubscribers(10)
    subscribers.end(error)
    subscription = subscribers.subscribe()
    with pytest.raises(StopIteration if error is None else Corrupt):
        next(subscription)
    assert len(subscribers) == 0


def test_closing_ends_a_subscription_and_forgets_it():
    """What it held is dropped; the others go on; closing twice is fine."""
    subscribers = EventSubscribers(10)
    other = subscribers.subscribe()
    with subscribers.subscribe() as subscription:
        subscribers.publish(event(1))
        assert len(subscribers) == 2
    subscription.close()
    assert len(subscribers) == 1
    subscribers.publish(event(2))
    assert list(subscription) == []
    with pytest.raises(Closed):
        subscription.get(10)
    assert [other.get(0), other.get(0)] == [event(1), event(2)]


def test_a_closed_subscription_does_not_raise_what_ended_shipping():
    """A subscriber that has left hears nothing."""
    subscribers = EventSubscribers(10)
    subscription = subscribers.subscribe()
    subscribers.end(Corrupt("over"))
    subscription.close()
    assert list(subscription) == []


def test_a_forgotten_subscription_costs_nothing():
    """Leaving a loop without closing leaves nothing behind."""
    subscribers = EventSubscribers(10)
    for n in range(100):
        subscription = subscribers.subscribe()
        subscribers.publish(event(n))
        for _ in subscription:
            break
    del subscription
    gc.collect()
    assert len(subscribers) == 0
    subscribers.publish(event(0))
    assert subscribers._subscriptions == ()


def test_a_sleeping_thread_is_woken_by_an_event():
    """No polling, no missed ring."""
    subscribers = EventSubscribers(10)
    subscription = subscribers.subscribe()
    result = in_thread(lambda: next(subscription))
    subscribers.publish(event(1))
    assert result() == event(1)


@pytest.mark.parametrize("how", ["end", "error", "close"])
def test_a_sleeping_thread_is_woken_by_the_end(how):
    """Nobody is left waiting."""
    subscribers = EventSubscribers(10)
    subscription = subscribers.subscribe()
    result = in_thread(lambda: list(subscription))
    if how == "close":
        subscription.close()
    else:
        subscribers.end(Corrupt("over") if how == "error" else None)
    if how == "error":
        with pytest.raises(Corrupt):
            result()
    else:
        assert result() == []


def test_async_iteration_sees_all_and_ends():
    """`async for` is woken from another thread, for each event and for the end."""
    subscribers = EventSubscribers(1000)
    subscription = subscribers.subscribe()

    def publish():
        for n in range(500):
            subscribers.publish(event(n))
        subscribers.end(None)

    async def consume():
        asyncio.get_running_loop().run_in_executor(None, publish)
        return [each.first_seq async for each in subscription]

    assert asyncio.run(asyncio.wait_for(consume(), 20)) == list(range(500))


@pytest.mark.parametrize("how", ["error", "close"])
def test_async_iteration_is_woken_by_the_end(how):
    """An error is raised to it, closing ends it."""
    subscribers = EventSubscribers(10)
    subscription = subscribers.subscribe()

    async def consume():
        waiting = asyncio.ensure_future(anext(subscription, None))
        await asyncio.sleep(0)
        ending = subscription.close if how == "close" else lambda: subscribers.end(Corrupt("over"))
        in_thread(ending)
        return await asyncio.wait_for(waiting, 20)

    if how == "close":
        assert asyncio.run(consume()) is None
    else:
        with pytest.raises(Corrupt):
            asyncio.run(consume())


def test_a_consumer_that_stands_still_does_not_hold_up_publishing():
    """Even one that stopped in the midst of taking an event: the publisher shares no lock with it."""
    subscribers = EventSubscribers(5)
    subscription = subscribers.subscribe()
    subscription._taking.acquire()

    def publish():
        for n in range(100):
            subscribers.publish(event(n))

    in_thread(publish)()
    subscription._taking.release()
    assert subscription.get(0).missed == 95


def test_no_lock_is_held_while_bells_are_rung():
    """A waiter that is woken may subscribe, publish and close, from any thread."""
    subscribers = EventSubscribers(5)
    subscription = subscribers.subscribe()
    rung = []

    class Ringing(Signal):
        def notify(self):
            rung.append(1)
            if len(rung) in {1, 3}:  # the first publication, and the end
                in_thread(subscribers.subscribe)()
                in_thread(lambda: subscribers.publish(event(2)))()

    subscription._signal = Ringing()
    subscribers.publish(event(1))
    subscribers.end(None)
    assert len(rung) == 3
    assert numbers(subscription) == [1, 2]


def test_a_block_closed_by_the_garbage_collector_does_not_lock_up_publishing():
    """Closing inside publishing, on the same thread, works."""
    subscribers = EventSubscribers(5)
    kept, gone = subscribers.subscribe(), subscribers.subscribe()

    def publish():
        with subscribers._lock:  # what the collector interrupts
            gone.close()
        subscribers.publish(event(1))

    in_thread(publish)()
    assert kept.get(0) == event(1)
    assert len(subscribers) == 1


def test_threads_that_share_a_subscription_share_its_events():
    """Each event goes to one of them; with losses, every one is counted once."""
    subscribers = EventSubscribers(16)
    subscription = subscribers.subscribe()
    results = [in_thread(lambda: [(e.first_seq, e.missed) for e in subscription]) for _ in range(4)]
    for n in range(5000):
        subscribers.publish(event(n))
    subscribers.end(None)
    taken = sorted(pair for result in results for pair in result())
    assert len({number for number, _ in taken}) == len(taken)
    assert len(taken) + sum(missed for _, missed in taken) == 5000


def test_many_publishers_keep_one_order():
    """All subscriptions see the same order, and each publisher's events in his order."""
    subscribers = EventSubscribers(10_000)
    subscriptions = [subscribers.subscribe() for _ in range(3)]

    def publish(place):
        for n in range(500):
            subscribers.publish(event(place * 1000 + n))

    for result in [in_thread(lambda place=place: publish(place)) for place in range(4)]:
        result()
    subscribers.end(None)
    seen = [numbers(each) for each in subscriptions]
    assert seen[0] == seen[1] == seen[2]
    for place in range(4):
        assert [n for n in seen[0] if n // 1000 == place] == [place * 1000 + n for n in range(500)]


def test_the_end_is_not_taken_for_the_last_event():
    """A consumer that races with publication and end still gets everything, then the error."""
    for _ in range(300):
        subscribers = EventSubscribers(10)
        subscription = subscribers.subscribe()

        def consume(subscription=subscription):
            got = []
            with pytest.raises(Corrupt):
                for each in subscription:
                    got.append(each.first_seq)
            return got

        result = in_thread(consume)
        subscribers.publish(event(1))
        subscribers.publish(event(2))
        subscribers.end(Corrupt("over"))
        assert result() == [1, 2]


def test_what_is_published_between_a_look_and_the_end_is_not_lost():
    """The consumer found nothing; before it looks for the end, an event and the end come."""
    subscribers = EventSubscribers(10)
    subscription = subscribers.subscribe()
    take = subscription._take

    def take_and_be_overtaken():
        found = take()
        subscription._take = take
        subscribers.publish(event(1))
        subscribers.end(None)
        return found

    subscription._take = take_and_be_overtaken
    assert numbers(subscription) == [1]


def test_consumers_of_one_subscription_take_one_at_a_time():
    """Taking an event and counting what is missing before it are one step."""
    subscribers = EventSubscribers(10)
    subscription = subscribers.subscribe()
    subscribers.publish(event(1))
    with subscription._taking:
        thread = threading.Thread(target=subscription.get, args=(10,))
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
    thread.join(20)
    assert not thread.is_alive()
    assert subscription.get(0) is None


def test_events_are_frozen_values():
    """They can be compared, encoded and not changed."""
    one = event(1)
    with pytest.raises(AttributeError):
        one.missed = 5  # type: ignore[misc]
    assert msgspec.json.decode(msgspec.json.encode(one), type=Event) == one
