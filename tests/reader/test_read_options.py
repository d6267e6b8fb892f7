"""Options as text: every one is understood, what is wrong is named, all of it at once, and no secret is repeated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import Invalid
from holdfast.reader import read_options as module
from holdfast.reader.offsets import PartitionMark, ReadMarks
from holdfast.reader.read_options import (
    OPTION_NAMES,
    SPLIT_BYTES,
    ReadOptions,
    is_table,
    own_options,
    parse_options,
    parse_time,
    store_environment,
)
from holdfast.store.store_settings import StoreSettings

pytestmark = pytest.mark.unit
LOG = "0f" * 16

BASE = {"path": "/srv/log", "topic": "orders"}


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment says about stores does not count here."""
    for field in StoreSettings.__struct_fields__:
        monkeypatch.delenv(f"HOLDFAST_STORE__{field.upper()}", raising=False)


@dataclass
class Case:
    """One option: text that is right, what it becomes, and text that is wrong."""

    text: str
    field: str
    value: object
    wrong: str = ""
    complaint: str = ""


CASES = {
    "topic": Case("orders, payments,orders", "topics", ("orders", "payments"), "../x", "topic: not a topic name"),
    "topicPattern": Case("ord.*", "topic_pattern", "ord.*", "(", "topicPattern is not a regular expression"),
    "columns": Case("offset, value", "columns", ("offset", "value")),
    "startingOffsets": Case(
        '{"orders":{"0":5}}',
        "starting_offsets",
        ReadMarks("", {("orders", 0): PartitionMark(None, 5)}),
        "first",
        "startingOffsets: these are not",
    ),
    "endingOffsets": Case(
        '{"orders":{"0":-1}}',
        "ending_offsets",
        ReadMarks("", {("orders", 0): PartitionMark(None, -1)}),
        "earliest",
        "endingOffsets: these are not",
    ),
    "startingTimestamp": Case("1700000000000", "since_us", 1_700_000_000_000_000, "noon", "startingTimestamp must be"),
    "endingTimestamp": Case(
        "2023-11-14T22:13:20+00:00", "before_us", 1_700_000_000_000_000, "2023-11-14", "must name its time zone"
    ),
    "asOf": Case(
        f'{{"{LOG}":{{"orders":{{"0":[2,5]}}}}}}',
        "as_of",
        ReadMarks(LOG, {("orders", 0): PartitionMark(2, 5)}),
        '{"orders":{"0":[2,5]}}',
        "asOf: these are not the marks of a read",
    ),
    "includeTail": Case("True", "include_tail", True, "yes", "includeTail must be true or false"),
    "verify": Case("FULL", "verify", "full", "some", "verify must be one of: off, hash, full"),
    "schemaMode": Case("known", "schema_mode", "known", "old", "schemaMode must be one of: latest, known, strict"),
    "encrypted": Case("sealed", "encrypted", "sealed", "yes", "encrypted must be one of: open, sealed"),
    "keyring": Case("env:KEYS", "keyring", "env:KEYS", "k1:c2VjcmV0", "keyring must be env:NAME or file:PATH"),
    "logId": Case("0f" * 16, "log_id", "0f" * 16, "0F", "logId must be 32 hex digits"),
    "failOnDataLoss": Case("false", "fail_on_data_loss", False, "0", "failOnDataLoss must be true or false"),
    "minPartitions": Case("12", "min_partitions", 12, "0", "minPartitions must be above zero"),
    "splitBytes": Case("1048576", "split_bytes", 2**20, "1M", "splitBytes must be a number"),
    "maxOffsetsPerTrigger": Case("7", "max_offsets", 7, "-7", "maxOffsetsPerTrigger must be above zero"),
    "maxBytesPerTrigger": Case("7", "max_bytes", 7, "", "maxBytesPerTrigger must be a number"),
    "maxSegmentsPerTrigger": Case("7", "max_segments", 7, "seven", "maxSegmentsPerTrigger must be a number"),
    "reader": Case("nightly", "reader", "nightly", "a/b", "reader must be a plain name"),
    "leaseSeconds": Case("60", "lease_seconds", 60, "0", "leaseSeconds must be above zero"),
    "emit": Case("segments", "emit", "segments", "files", "emit must be one of: rows, segments, manifest"),
    "native": Case("false", "native", False, "maybe", "native must be true or false"),
}
STORE_CASES = {
    "endpoint": Case("http://127.0.0.1:9000", "endpoint", "http://127.0.0.1:9000", "ftp://x", "store.endpoint must"),
    "region": Case("eu-west-1", "region", "eu-west-1"),
    "pathStyle": Case("yes", "path_style", "yes", "maybe", "pathStyle must be one of"),
    "credentials": Case("env:AWS", "credentials", "env:AWS", "hunter2", "store.credentials must be"),
    "caFile": Case("/etc/ca.pem", "ca_file", "/etc/ca.pem"),
    "allowHttp": Case("true", "allow_http", True, "maybe", "allowHttp must be true or false"),
    "retries": Case("5", "retries", 5, "many", "retries must be a number"),
    "timeoutMs": Case("1500.5", "timeout_ms", 1500.5, "0", "store.timeout_ms must be above zero"),
    "readBytesMax": Case("1000", "read_bytes_max", 1000, "0", "readBytesMax must be above zero"),
    "prefetchRequests": Case("0", "prefetch_requests", 0, "33", "store.prefetch_requests must be 0 to 32"),
    "prefetchBytes": Case("1000", "prefetch_bytes", 1000, "0", "prefetchBytes must be above zero"),
}
ALL = CASES | STORE_CASES
WRONG = {name: case for name, case in ALL.items() if case.complaint}


def base_for(name: str) -> dict[str, str]:
    return {"path": "/srv/log"} if name in ("topic", "topicPattern") else BASE


def test_every_option_is_tried_here():
    assert set(ALL) | {"path", "root"} == set(OPTION_NAMES)


def test_every_field_of_a_read_can_be_set_by_an_option():
    fields = {field.name for field in msgspec.structs.fields(ReadOptions)}
    assert fields == {case.field for case in CASES.values()} | {"store", "kafka_names"}  # the latter: all who use Spark


@pytest.mark.parametrize("name", ALL)
def test_every_option_is_understood_and_capitals_do_not_matter(name):
    case = ALL[name]
    for spelled in (name, name.lower(), name.upper()):
        place, found = parse_options({**base_for(name), spelled: case.text})
        assert place == "/srv/log"
        assert getattr(found.store if name in STORE_CASES else found, case.field) == case.value


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_named(name):
    with pytest.raises(Invalid) as refused:
        parse_options({**base_for(name), name: WRONG[name].wrong})
    assert WRONG[name].complaint in refused.value.message


def test_without_options_a_read_has_these_defaults():
    assert parse_options(BASE)[1] == ReadOptions(
        topics=("orders",),
        columns=None,
        kafka_names=True,
        starting_offsets="earliest",
        ending_offsets="latest",
        verify="hash",
        schema_mode="latest",
        encrypted="open",
        fail_on_data_loss=True,
        split_bytes=SPLIT_BYTES,
        emit="rows",
    )


def test_no_columns_at_all_differ_from_all_columns():
    assert parse_options({**BASE, "columns": ""})[1].columns == ()
    assert parse_options(BASE)[1].columns is None


def test_root_stands_in_for_path():
    assert parse_options({"root": "s3://b/p", "topic": "orders"})[0] == "s3://b/p"
    assert parse_options({"root": "s3://b/p", "path": "/warehouse/t", "topic": "orders"})[0] == "s3://b/p"


def test_everything_that_is_wrong_is_reported_at_once():
    given = {
        "topic": "orders",
        "topicPattern": "o.*",
        "verify": "some",
        "minPartitions": "0",
        "keyring": "secret",
        "colums": "offset",
        "credentials": "hunter2",
    }
    with pytest.raises(Invalid) as refused:
        parse_options(given)
    for part in ("no root", "topicPattern", "verify", "minPartitions", "keyring", "colums", "store.credentials"):
        assert part in refused.value.message


@pytest.mark.parametrize(
    ("name", "meant"),
    [("topik", "topic"), ("keyrings", "keyring"), ("startingoffset", "startingOffsets"), ("asof_", "asOf")],
)
def test_an_unknown_option_is_refused_with_the_one_that_was_meant(name, meant):
    with pytest.raises(Invalid, match=f"there is no option {name} \\(did you mean {meant}\\?\\)"):
        parse_options({**BASE, name: "x"})


def test_what_spark_tells_itself_is_no_unknown_option():
    assert parse_options({**BASE, "__hive_compatible_bucketed_table_insertion__": "true"})[1].topics == ("orders",)


@pytest.mark.parametrize("name", [*ALL, "unheardOf", "password"])
def test_no_refusal_repeats_a_secret(name):
    """Whatever option it was put into by mistake; the names of topics are the exception: they are no place for one."""
    secret = "k1:wJalrXUtnFEMI-K7MDENG/bPxRfiCYEXAMPLEKEY="
    try:
        parse_options({**base_for(name), name: secret})
    except Invalid as refused:
        if name != "topic":
            assert "wJalr" not in str(refused)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"topic": "", "topicPattern": ""}, "give either topic or topicPattern"),
        ({"topicPattern": "o"}, "give either topic or topicPattern"),
        ({"asOf": f'{{"{LOG}":{{}}}}', "endingOffsets": '{"orders":{"0":1}}'}, "asOf and endingOffsets"),
        ({"asOf": f'{{"{LOG}":{{}}}}', "includeTail": "true"}, "asOf reads what was settled"),
        ({"encrypted": "sealed", "includeTail": "true"}, "encrypted=sealed reads blocks"),
        ({"emit": "segments", "includeTail": "true"}, "emit=segments tells of segments"),
        ({"emit": "manifest", "includeTail": "true"}, "emit=manifest tells of segments"),
    ],
)
def test_options_that_contradict_each_other_are_refused(given, complaint):
    with pytest.raises(Invalid, match=complaint):
        parse_options({**BASE, **given})


@pytest.mark.parametrize("field", ["verify", "schema_mode", "encrypted", "emit"])
def test_python_callers_cannot_pass_a_word_that_means_nothing(field):
    """It would be taken for a default: `verify="Full"` must not read with less."""
    with pytest.raises(Invalid, match=f"{field} must be one of"):
        ReadOptions(topics=("orders",), **{field: "Full"})


def test_a_pattern_matches_whole_names():
    read = ReadOptions(topic_pattern="ord.*|pay")
    assert [name for name in ("orders", "ord", "pay", "payments", "xorders") if read.matches(name)] == [
        "orders",
        "ord",
        "pay",
    ]
    assert ReadOptions(topics=("ord.*",)).matches("orders") is False


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("0", 0),
        ("-1", -1000),
        (" 1700000000000 ", 1_700_000_000_000_000),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1970-01-01T01:00:00+01:00", 0),
    ],
)
def test_times_are_milliseconds_or_iso_with_a_zone(text, microseconds):
    assert parse_time(text) == microseconds


@pytest.mark.parametrize("text", ["", "yesterday", "2023-11-14T22:13:20", "1.5e3"])
def test_a_time_without_a_zone_or_sense_is_refused(text):
    with pytest.raises(ValueError, match="must"):
        parse_time(text)


def test_a_tables_options_are_distinguished_from_what_its_catalog_adds():
    given = {"provider": "holdfast", "path": "/warehouse/t", "option.Topic": "orders", "owner": "me", "serde": "x"}
    assert is_table(given)
    assert own_options(given) == {"path": "/warehouse/t", "topic": "orders"}
    assert not is_table(BASE)


def test_the_environment_says_how_a_store_is_reached_and_options_say_it_louder(monkeypatch):
    monkeypatch.setenv("HOLDFAST_STORE__REGION", "eu-west-1")
    monkeypatch.setenv("HOLDFAST_STORE__RETRIES", "7")
    store = parse_options({**BASE, "retries": "2"})[1].store
    assert (store.region, store.retries) == ("eu-west-1", 2)


def test_an_environment_that_makes_no_sense_is_named_and_not_repeated():
    with pytest.raises(Invalid, match="HOLDFAST_STORE__RETRIES") as refused:
        store_environment({"HOLDFAST_STORE__RETRIES": "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_no_field_could_hold_a_key():
    """Keys and credentials are named by reference, and by nothing else."""
    assert "secret" not in " ".join(OPTION_NAMES).lower()
    assert "Keyring" not in Path(module.__file__).read_text()
