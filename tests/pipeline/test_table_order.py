"""The order of tables, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Invalid
from pyspark_holdfast.pipeline import Input, Table, append, count, keyed, snapshot, table, topic, whole, windowed
from pyspark_holdfast.pipeline.table_definition import Kind
from pyspark_holdfast.pipeline.table_order import chosen, ordered, readers_of

pytestmark = pytest.mark.unit


def made(name: str, *inputs: str | Input, kind: Kind | None = None) -> Table:
    def function(*frames: Any) -> Any:
        return frames[0]

    return table(inputs=list(inputs), kind=kind, name=name)(function)


def names(tables: list[Table]) -> list[str]:
    return [one.name for one in ordered(tables)]


def test_what_is_read_comes_first() -> None:
    assert names([made("c", "b"), made("b", "a"), made("a", "orders"), made("d", "orders")]) == ["a", "b", "c", "d"]


@given(st.integers(0, 2**30), st.integers(1, 12))
def test_any_order_of_definitions_gives_an_order_of_runs(seed: int, size: int) -> None:
    from random import Random

    random = Random(seed)
    tables = [
        made(f"t{n}", "orders", *random.sample([f"t{m}" for m in range(n)], min(n, random.randrange(3))))
        for n in range(size)
    ]
    random.shuffle(tables)
    order = ordered(tables)
    seen: set[str] = set()
    for one in order:
        assert one.upstream <= seen
        seen.add(one.name)
    assert len(order) == size


def test_a_circle_is_reported() -> None:
    with pytest.raises(Invalid, match="in a circle tables=a -> c -> b -> a"):
        ordered([made("a", "b"), made("b", "c"), made("c", "a"), made("d", "orders")])


def test_a_table_of_a_topics_name_reads_the_topic() -> None:
    (one,) = ordered([made("orders", "orders")])
    assert [source.kind for source in one.sources] == ["topic"]
    (one, _) = ordered([made("a", topic("b")), made("b", "orders")])
    assert one.sources[0].kind == "topic"


def test_of_tables_that_change_there_are_no_new_rows() -> None:
    for kind in (keyed("id", order_by="n"), snapshot(), windowed("at", "1h", values={"n": count()})):
        with pytest.raises(Invalid) as refused:
            ordered([made("a", "orders", kind=kind), made("b", "a")])
        assert 'whole("a")' in refused.value.hint
        ordered([made("a", "orders", kind=kind), made("b", "orders", whole("a"))])


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (append(), "add all rows again"),
        (windowed("at", "1h", values={"n": count()}), "add all rows again"),
        (keyed("id", order_by="n"), "keep keys that are gone"),
    ],
)
def test_rows_that_are_read_as_a_whole_are_not_added_again_and_again(kind: Kind, why: str) -> None:
    with pytest.raises(Invalid, match=f"each run would {why}"):
        ordered([made("a", whole("orders"), kind=kind)])


def test_a_snapshot_reads_all_of_everything() -> None:
    one = ordered([made("a", "orders", kind=snapshot())])[0]
    assert [source.key for source in one.sources] == ["whole(orders)"]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([], "needs a table"),
        ([made("a", "x"), made("a", "y")], "same name"),
        ([made("a", "x", "x")], "twice"),
        ([made("_a", "x")], "begin with '_'"),
        ([made("a", Input("orders_nwo", "table")), made("orders_now", "x")], "did you mean 'orders_now'"),
        ([lambda frame: frame], "of takes tables"),
    ],
)
def test_mistakes_are_reported(tables: list[Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        ordered(tables)


def test_tables_are_chosen_by_name() -> None:
    order = ordered([made("a", "orders"), made("b", "a"), made("c", "b")])
    assert [one.name for one in chosen(order, ["c", "a"])] == ["a", "c"]
    assert len(chosen(order, [])) == 3
    assert readers_of(order) == {"a": ["b"], "b": ["c"]}
    with pytest.raises(Invalid, match="has no table 'bb', did you mean 'b'"):
        chosen(order, ["bb"])
