"""What version 1 of the format wrote is read forever, and the document says what is written."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import get_args
from uuid import UUID

import pytest

import holdfast
from holdfast.errors import UnsupportedEntryKind
from holdfast.execution.journal.entries import (
    Entry,
    ExecutionRow,
    Opened,
    StepResult,
    decode_any_block,
    decode_entry,
    encode_block,
    encode_entry,
)
from holdfast.execution.journal.execution_id import derived_id
from holdfast.execution.steps.claim_check import fetched
from tests.executions.by_hand import append, live_of, opened
from tests.golden.make_executions import EVERY, HERE, LARGE, RING, SETTINGS, stored
from tests.unit.test_golden import document, examples

pytestmark = pytest.mark.disk

EXPECTED = json.loads((HERE / "executions.json").read_text())


@pytest.mark.parametrize("name", ["executions", "executions-sealed"])
def test_old_logs_are_read_and_gone_on_with(tmp_path: Path, name: str) -> None:
    """Rows, entries, folds, a past written anew and a large result are what they were; and go on."""
    shutil.copytree(HERE / name, tmp_path / "log")
    ring = RING if name.endswith("sealed") else None
    with holdfast.open(tmp_path / "log", settings=SETTINGS, keyring=ring) as log:
        assert stored(log) == EXPECTED[name]
        execution = derived_id("golden", "whole")
        opened(log, "import", execution)
        live = live_of(log, execution)
        assert live.resumed
        reference = live.look("large").result.reference
        assert fetched(log._journal, execution, "large", reference) == LARGE
        append(log, execution, StepResult("new", b"n" * 32, "idempotent", b"", 1))


def test_every_kind_of_entry_is_written_as_it_was() -> None:
    """Byte for byte, and back."""
    assert {type(entry) for entry in EVERY} == set(get_args(Entry))
    assert [encode_entry(entry).hex() for entry in EVERY] == EXPECTED["every"]
    assert [decode_entry(bytes.fromhex(body)) for body in EXPECTED["every"]] == list(EVERY)
    block = decode_any_block(bytes.fromhex(EXPECTED["block"]))
    assert tuple(block.entries) == EVERY
    assert block.first == 5


def test_the_document_has_every_kind_and_field() -> None:
    """Each kind with its number, and its fields in their order; each field of a row."""
    rows = dict(re.findall(r"^\| (\d+) \| `(\w+)` \|", document("0010"), flags=re.MULTILINE))
    assert rows == {str(kind.__struct_config__.tag): kind.__name__ for kind in get_args(Entry)}
    for kind in get_args(Entry):
        [listed] = re.findall(rf"^\| \d+ \| `{kind.__name__}` \| (.*) \|$", document("0010"), flags=re.MULTILINE)
        assert listed.split(", ") == [name.removesuffix("_us") for name in kind.__struct_fields__]
    fields = re.findall(r"(\d+) `(\w+)`", document("0010").partition("## Row")[2].partition("## Block")[0])
    assert [name for _, name in fields] == list(ExecutionRow.__struct_fields__)
    assert [int(number) for number, _ in fields] == list(range(len(fields)))


def test_the_documented_block_is_the_block() -> None:
    """The worked example."""
    execution = UUID("00112233-4455-7677-8899-aabbccddeeff")
    block = encode_block(execution, 0, [Opened(1, 1000), StepResult("a", b"k" * 32, "idempotent", b"z", 2000)])
    assert examples("0010")["block"] == block


def test_a_block_of_another_version_is_refused() -> None:
    """Never guessed at."""
    body = bytearray.fromhex(EXPECTED["block"])
    assert body[1] == 1
    body[1] = 2
    with pytest.raises(UnsupportedEntryKind, match="version"):
        decode_any_block(bytes(body))
