"""After any commits, crashes and races, a table is what a plain model says: to us, to deltalake and to Polars."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from tests.sampling import examples
from tests.tables.table_worlds import NAME, SCHEMA, Died, FaultyStore, Row, World, ordered

pytestmark = pytest.mark.disk

GROWN = [
    SCHEMA,
    pa.schema([*SCHEMA, pa.field("price", pa.decimal128(12, 2))]),
    pa.schema([*SCHEMA, pa.field("price", pa.decimal128(12, 2)), pa.field("at", pa.timestamp("us", "UTC"))]),
    pa.schema(
        [
            *SCHEMA,
            pa.field("price", pa.decimal128(12, 2)),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("items", pa.list_(pa.struct({"sku": pa.string(), "n": pa.int32()}))),
        ]
    ),
]
FAULTS = ("", "", "", "before", "after", "die", "die after")
STEPS = st.tuples(
    st.sampled_from(["append", "grow", "replace", "rewrite", "empty", "note", "race", "garbage"]),
    st.integers(0, 5),
    st.sampled_from(FAULTS),
    st.integers(1, 25),
)
NOTE = b'{"commitInfo":{"timestamp":1,"operation":"VACUUM START","operationParameters":{}}}\n'


class Model:
    """What the table must be, version by version."""

    def __init__(self) -> None:
        self.versions: list[list[Row]] = []
        self.columns: list[int] = []
        self.number = 0

    @property
    def now(self) -> list[Row]:
        return self.versions[-1] if self.versions else []

    def fresh(self, count: int, grown: int) -> list[Row]:
        names = GROWN[grown].names
        rows = []
        for _ in range(count):
            self.number += 1
            values = {"id": self.number, "status": "x" * (self.number % 50) or None, "items": [{"sku": "a", "n": 1}]}
            rows.append({name: values.get(name) for name in names})
        return rows


def widened(rows: Sequence[Row], grown: int) -> list[Row]:
    return ordered([{name: row.get(name) for name in GROWN[grown].names} for row in rows])


def step(world: World, model: Model, kind: str, count: int, fault: str, at: int) -> None:
    """One thing that happens to the table; the model follows if it was committed."""
    grown = model.columns[-1] if model.columns else 0
    if kind == "note" and model.versions:
        world.commit_path(len(model.versions)).write_bytes(NOTE)
        model.versions.append(model.now)
        model.columns.append(grown)
        return
    before = world.log().snapshot()
    if kind == "grow":
        grown = min(grown + 1, len(GROWN) - 1)
    rows = [] if kind == "empty" else model.fresh(count, grown)
    removed = list(before.files[: count + 1]) if kind in ("replace", "rewrite") else []
    gone = world.rows_of(before._replace(files=tuple(removed)))
    if kind == "rewrite":
        rows = gone
    kept = [row for row in model.now if row not in gone]
    faulty = World(world.path, FaultyStore(world.store, fault, at), world.clock)
    committed = False
    try:
        made = faulty.made(rows, GROWN[grown], removed, is_rewrite=kind == "rewrite", kind="append")
        if kind == "race":
            other = model.fresh(1, grown)
            world.run(other, GROWN[grown])
            model.versions.append(widened([*model.now, *other], grown))
            model.columns.append(grown)
        if kind == "garbage":
            return
        committed = faulty.log().commit(made.before, made.change) is not None
        assert committed == (kind != "race"), "an unknown outcome is not reported as one"
    except (Died, HoldfastError):
        newest = world.log().snapshot()
        committed = newest.version >= len(model.versions)
    if committed:
        model.versions.append(widened([*kept, *rows], grown))
        model.columns.append(grown)


@settings(max_examples=examples(20))
@given(steps=st.lists(STEPS, min_size=6, max_size=14))
def test_a_table_is_what_the_model_says_at_every_version(steps: list[tuple[str, int, str, int]]):
    judge(steps)


@pytest.mark.soak
@settings(max_examples=400)
@given(steps=st.lists(STEPS, min_size=1, max_size=30))
def test_a_table_is_what_the_model_says_for_long(steps: list[tuple[str, int, str, int]]):
    judge(steps)


def judge(steps: list[tuple[str, int, str, int]]) -> None:
    path = Path(tempfile.mkdtemp())
    try:
        world, model = World(path), Model()
        for kind, count, fault, at in steps:
            step(world, model, kind, count, fault, at)
            assert world.log().snapshot().version == len(model.versions) - 1
        for version, rows in enumerate(model.versions):
            assert world.rows(version) == rows
            assert world.delta_rows(version) == rows
        if model.versions:
            assert world.rows() == world.delta_rows() == world.polars_rows() == model.now
            run = world.log().snapshot().run
            assert run is not None
            assert world.delta().transaction_version(f"holdfast:nightly:{NAME}") == run.run
            reread_after_cleaning(world, model)
    finally:
        shutil.rmtree(path)


def reread_after_cleaning(world: World, model: Model) -> None:
    """Cleaning leaves the newest version, and every older one that is kept, as they were."""
    last = len(model.versions) - 1
    world.log().clean(keep_ms=2**40)
    for version in range(last + 1):
        assert world.rows(version) == world.delta_rows(version) == model.versions[version]
    report = world.log().clean(keep_ms=0)
    assert world.rows() == world.delta_rows() == model.now
    assert world.log().clean(keep_ms=0).files == 0
    assert report.oldest <= last
    live = {file.path for file in world.log().snapshot().files}
    there = {found.relative_to(world.table).as_posix() for found in (world.table / "data").glob("*.parquet")}
    run = world.log().snapshot().run
    assert run is not None
    assert {name for name in there if int(name[5:15]) <= run.run} == live
    assert not set(world.delta().vacuum(dry_run=True, retention_hours=0, enforce_retention_duration=False)) & live
    world.run([{"id": 10**6, "status": "after"}], GROWN[model.columns[-1]])
    assert len(world.delta_rows()) == len(model.now) + 1
