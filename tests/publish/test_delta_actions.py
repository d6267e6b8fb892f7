"""Every action is one of the protocol's, field by field; and columns are Delta's, or refused with their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import Invalid
from holdfast.model.schema import declare
from holdfast.publish.delta import delta_log
from holdfast.publish.delta.column_types import raw_columns, typed_columns
from holdfast.segments.file.segment_columns import RAW_SCHEMA
from tests.publish.worlds import World, log_folder

TEXTS = {"*": str}
# What the protocol says of each action: its fields, their types, and which may be missing.
ACTIONS: dict[str, dict[str, Any]] = {
    "protocol": {"minReaderVersion": int, "minWriterVersion": int, "readerFeatures?": [str], "writerFeatures?": [str]},
    "metaData": {
        "id": str,
        "name?": str,
        "description?": str,
        "format": {"provider": str, "options": TEXTS},
        "schemaString": str,
        "partitionColumns": [str],
        "createdTime?": int,
        "configuration": TEXTS,
    },
    "add": {
        "path": str,
        "partitionValues": TEXTS,
        "size": int,
        "modificationTime": int,
        "dataChange": bool,
        "stats?": str,
        "tags?": TEXTS,
        "deletionVector?": dict,
        "baseRowId?": int,
        "defaultRowCommitVersion?": int,
        "clusteringProvider?": str,
    },
    "remove": {
        "path": str,
        "deletionTimestamp?": int,
        "dataChange": bool,
        "extendedFileMetadata?": bool,
        "partitionValues?": TEXTS,
        "size?": int,
        "stats?": str,
        "tags?": TEXTS,
        "deletionVector?": dict,
        "baseRowId?": int,
        "defaultRowCommitVersion?": int,
    },
    "txn": {"appId": str, "version": int, "lastUpdated?": int},
}
STATS = {"numRecords": int, "minValues": dict, "maxValues": dict, "nullCount": dict}


def check(value: Any, rule: Any, where: str) -> None:
    """Hold a value against a rule of the protocol."""
    if isinstance(rule, list):
        assert isinstance(value, list), where
        for one in value:
            check(one, rule[0], where)
    elif isinstance(rule, dict) and "*" in rule:
        assert isinstance(value, dict), where
        for one in value.values():
            check(one, rule["*"], where)
    elif isinstance(rule, dict):
        required = {name for name in rule if not name.endswith("?")}
        assert required <= set(value) <= {name.rstrip("?") for name in rule}, where
        for name, one in value.items():
            check(one, rule.get(name, rule.get(f"{name}?")), f"{where}.{name}")
    else:
        assert type(value) is rule, where


def check_commit(lines: list[dict[str, Any]]) -> None:
    kinds = [next(iter(line)) for line in lines]
    assert kinds[0] == "commitInfo"
    assert kinds.count("commitInfo") == 1
    assert kinds.count("protocol") <= 1
    assert kinds.count("metaData") <= 1
    paths = [line[kind]["path"] for line, kind in zip(lines, kinds, strict=True) if kind in ("add", "remove")]
    assert len(set(paths)) == len(paths), "one action per file and commit"
    for line, kind in zip(lines[1:], kinds[1:], strict=True):
        assert len(line) == 1
        check(line[kind], ACTIONS[kind], kind)
        if kind == "add":
            check(json.loads(line[kind]["stats"]), STATS, "stats")


@pytest.mark.disk
def test_every_action_validates_against_the_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All kinds of commits, and the checkpoint that says the same."""
    monkeypatch.setattr(delta_log, "_CHECKPOINT_LEAST", 5)
    world, schema = World(tmp_path), pa.schema({"a": pa.int64()})
    try:
        for turn in range(5):
            rows = world.log.topic("rows", schema=schema)
            rows.append(dict.fromkeys(schema.names))
            world.settle()
            if turn == 2:
                world.join("rows", 0, 0, 2)
                schema = schema.append(pa.field("local", pa.timestamp("us")))
            if turn == 4:
                world.expire("rows", 0, 3)
            world.publisher().publish("rows")
        commits = sorted(log_folder(world.table("rows")).glob("*.json"))
        lines = [[json.loads(line) for line in path.read_text().splitlines()] for path in commits]
        for commit in lines:
            check_commit(commit)
        assert {kind for commit in lines for line in commit for kind in line} == {*ACTIONS, "commitInfo"}
        (checkpoint,) = log_folder(world.table("rows")).glob("*.parquet")
        found = [
            {kind: unmapped(one) for kind, one in row.items() if one is not None}
            for row in pq.read_table(checkpoint).to_pylist()
        ]
        assert {kind for row in found for kind in row} == set(ACTIONS)
        for row in found:
            ((kind, one),) = row.items()
            check(one, ACTIONS[kind], kind)
            assert not one.get("dataChange", False), "what a checkpoint says is not new"
        hint = json.loads((log_folder(world.table("rows")) / "_last_checkpoint").read_text())
        check(hint, {"version": int, "size": int, "sizeInBytes": int, "numOfAddFiles": int}, "hint")
        assert (hint["size"], hint["sizeInBytes"]) == (len(found), checkpoint.stat().st_size)
    finally:
        world.close()


def unmapped(value: Any) -> Any:
    """A row of a checkpoint as JSON would have it: no nulls, maps as objects."""
    if isinstance(value, dict):
        return {name: unmapped(one) for name, one in value.items() if one is not None}
    if isinstance(value, list) and all(isinstance(one, tuple) for one in value) and value:
        return dict(value)
    return {} if value == [] else value


@pytest.mark.unit
def test_raw_columns_are_those_of_the_files():
    """Names, order, types and nullability; only the partition is in no file."""
    fields = json.loads(raw_columns().schema)["fields"]
    assert [field["name"] for field in fields] == ["partition", *RAW_SCHEMA.names]
    typed = json.loads(typed_columns(RAW_SCHEMA).schema)["fields"][3:]
    assert [(one["name"], one["type"], one["nullable"]) for one in fields[1:]] == [
        (one["name"], one["type"], one["nullable"]) for one in typed
    ]


GOOD = {
    "byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "boolean": pa.bool_(), "string": pa.large_string(), "binary": pa.binary(7),
    "date": pa.date64(), "timestamp": pa.timestamp("s", "Europe/Berlin"), "timestamp_ntz": pa.timestamp("ms"),
    "decimal(38,4)": pa.decimal128(38, 4),
}  # fmt: skip
BAD = {
    "unsigned": (pa.uint8(), "sign"), "time": (pa.time64("us"), "times of day"), "span": (pa.duration("us"), "no type"),
    "big": (pa.decimal256(40, 2), "38 digits"), "half": (pa.float16(), "no type"), "nothing": (pa.null(), "no type"),
    "nanos": (pa.timestamp("ns", "UTC"), "microseconds"), "negative": (pa.decimal128(5, -2), "38 digits"),
    "inside": (pa.struct({"x": pa.list_(pa.uint16())}), "inside.x.element"),
    "named": (pa.struct({"a b": pa.int8()}), "named.a b"),
    "twice": (pa.struct({"a": pa.int8(), "A": pa.int8()}), "case"),
}  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize("word", GOOD)
def test_types_have_deltas_words(word: str):
    columns = typed_columns(declare(pa.schema({"x": GOOD[word], "l": pa.list_(GOOD[word])})).stored)
    fields = {field["name"]: field["type"] for field in json.loads(columns.schema)["fields"]}
    assert (fields["x"], fields["l"]["elementType"]) == (word, word)
    assert columns.has_local_times == (word == "timestamp_ntz")


@pytest.mark.unit
@pytest.mark.sampled(99)
@pytest.mark.parametrize("name", BAD)
def test_what_delta_lacks_is_refused_with_the_column_and_the_reason(name: str):
    kind, reason = BAD[name]
    with pytest.raises(Invalid, match=name) as refused:
        typed_columns(pa.schema({"fine": pa.int8(), name: kind}))
    assert reason in refused.value.message
    assert refused.value.hint


@pytest.mark.unit
@pytest.mark.parametrize("names", [("a b",), ("x=y",), ("tab\there",), ("Case", "case"), ("straße", "STRASSE")])
def test_names_that_delta_cannot_have_are_refused(names: tuple[str, ...]):
    with pytest.raises(Invalid, match="name"):
        typed_columns(pa.schema([(name, pa.int8()) for name in names]))
