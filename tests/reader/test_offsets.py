"""Offsets by topic and partition as text: Kafka's notation, there and back, and nothing else taken for it."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Invalid
from holdfast.reader.offsets import (
    PartitionMark,
    ReadMarks,
    format_marks,
    marks_in,
    nested,
    parse_marks,
    parse_offsets,
    require_log,
)

pytestmark = pytest.mark.unit
LOG = "000102030405060708090a0b0c0d0e0f"

topics = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,20}", fullmatch=True)
places = st.tuples(topics, st.integers(0, 65_535))
offsets = st.dictionaries(places, st.integers(-2, 2**62 - 1), max_size=12)


def format_offsets(ends):
    """Offsets as Kafka writes them; equal offsets are equal text."""
    return msgspec.json.encode(nested(ends)).decode()


@given(offsets)
def test_offsets_come_back_from_their_text(given_offsets):
    assert parse_offsets(format_offsets(given_offsets)).ends == given_offsets


@given(offsets)
def test_offsets_come_back_from_what_json_decodes_to(given_offsets):
    assert marks_in(nested(given_offsets)).ends == given_offsets
    assert marks_in({LOG: nested(given_offsets)}) == ReadMarks(LOG, marks_in(nested(given_offsets)).of)


@given(offsets, st.integers())
def test_equal_offsets_are_equal_text_in_whatever_order_they_came(given_offsets, seed):
    items = list(given_offsets.items())
    random.Random(seed).shuffle(items)
    assert format_offsets(dict(items)) == format_offsets(given_offsets)


def test_partitions_are_sorted_by_number_and_not_by_digits():
    assert format_offsets({("b", 10): 1, ("b", 9): 2, ("a", 0): 3}) == '{"a":{"0":3},"b":{"9":2,"10":1}}'


def test_kafkas_own_text_is_understood():
    assert parse_offsets(' { "orders": {"0": -2, "1": -1, "2": 42} } ').ends == {
        ("orders", 0): -2,
        ("orders", 1): -1,
        ("orders", 2): 42,
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "earliest",
        "12",
        "[]",
        "{",
        '{"orders":5}',
        '{"orders":{"0":"5"}}',
        '{"orders":{"0":1.5}}',
        '{"orders":{"0":null}}',
        '{"orders":{"":1}}',
        '{"orders":{"-1":1}}',
        '{"orders":{"+1":1}}',
        '{"orders":{"1 ":1}}',
        '{"orders":{"1e2":1}}',
        '{"orders":{"65536":1}}',
        '{"orders":{"\u0663":1}}',
        '{"orders":{"0":[5,4]}}',
        '{"orders":{"0":[-1,4]}}',
        '{"orders":{"0":[1]}}',
        '{"orders":{"0":[1,2,3]}}',
        '{"orders":{"0":[0,4611686018427387904]}}',
        '{"orders":{"0":-3}}',
        '{"orders":{"0":4611686018427387904}}',
    ],
)
def test_what_is_not_offsets_is_refused_with_the_notation(text):
    with pytest.raises(Invalid, match="not offsets") as refused:
        parse_offsets(text)
    assert '{"orders":{"0":1200,"1":900}}' in refused.value.hint


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b", "a b"])
def test_a_topic_that_could_not_exist_is_refused(name):
    with pytest.raises(Invalid, match="not a topic name"):
        marks_in({name: {"0": 1}})


@pytest.mark.parametrize("offset", [-2, -1])
def test_marks_are_numbers_and_never_words(offset):
    with pytest.raises(Invalid):
        parse_offsets(format_offsets({("orders", 0): offset}), least=0)
    assert parse_offsets('{"orders":{"0":0}}', least=0).ends == {("orders", 0): 0}


spans = st.tuples(st.integers(0, 2**61), st.integers(0, 2**61)).map(lambda pair: PartitionMark(min(pair), max(pair)))


@given(st.dictionaries(places, spans, max_size=12))
def test_marks_come_back_from_their_text_and_mean_their_ends_as_offsets(of):
    marks = ReadMarks(LOG, of)
    assert parse_marks(format_marks(marks)) == parse_offsets(format_marks(marks)) == marks
    assert marks.ends == {where: mark.end for where, mark in of.items()}


@pytest.mark.parametrize(
    "text", ["{}", '{"orders":{"0":5}}', '{"orders":{"0":[1,5]}}', f'{{"{LOG}":{{"orders":{{"0":5}}}}}}']
)
def test_marks_of_a_read_name_their_log_and_where_it_began(text):
    """Offsets that a person wrote could be those of any log."""
    with pytest.raises(Invalid, match="not the marks of a read") as refused:
        parse_marks(text)
    assert "marks_of(df)" in refused.value.hint


def test_marks_of_several_logs_are_refused():
    with pytest.raises(Invalid, match="several logs"):
        parse_offsets(f'{{"{LOG}":{{"a":{{"0":1}}}},"{"f0" * 16}":{{"a":{{"0":1}}}}}}')


def test_a_topic_may_be_called_as_a_log_is():
    assert parse_offsets(f'{{"{LOG}":{{"0":5}}}}') == ReadMarks("", {(LOG, 0): PartitionMark(None, 5)})


def test_marks_are_refused_at_another_log_and_offsets_are_not():
    marks = parse_marks(f'{{"{LOG}":{{"orders":{{"0":[1,5]}}}}}}')
    require_log(marks, LOG, what="these marks belong to", hint="")
    require_log(parse_offsets('{"orders":{"0":5}}'), "f0" * 16, what="these marks belong to", hint="")
    with pytest.raises(Invalid, match=f"another log than the one at this root log={'f0' * 16} expected={LOG}"):
        require_log(marks, "f0" * 16, what="these marks belong to", hint="")
