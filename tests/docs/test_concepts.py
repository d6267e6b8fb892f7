"""The page of concepts: its marks are the code's, its picture is whole, and no word is explained twice."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from holdfast import Marks

pytestmark = pytest.mark.unit

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "concepts.md").read_text(encoding="utf-8")
MARKS = [field.name for field in msgspec.structs.fields(Marks)]


def test_the_table_of_marks_is_the_codes() -> None:
    """Each mark has its row, in the order in which a record passes them."""
    table = PAGE.partition("\n## Marks\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == MARKS


def test_the_picture_shows_every_mark_and_is_readable_in_the_dark() -> None:
    """The picture is well-formed, needs nothing from elsewhere, and says in words what it shows."""
    text = (DOCS / "images/pipe.svg").read_text(encoding="utf-8")
    words = {element.text for element in ElementTree.fromstring(text).iter() if element.text}
    assert set(MARKS) <= words
    assert "prefers-color-scheme: dark" in text
    assert "<title" in text
    assert "<desc" in text
    assert not re.search(r"href=|url\((?!#)|<script|@import", text)
    assert len(text) < 10_000


def test_a_word_is_explained_once() -> None:
    """The glossary has one row for a word."""
    glossary = PAGE.partition("\n## Glossary\n")[2]
    words = [word for row in re.findall(r"^\| (\*\*.+?) \|", glossary, re.MULTILINE) for word in row.split(", ")]
    assert len(words) > 50
    assert len(words) == len(set(words))
    for word in (
        "log",
        "topic",
        "partition",
        "record",
        "offset",
        "entry",
        "segment",
        "manifest",
        "epoch",
        "ticket",
        "receipt",
        "root",
        "tail",
        "commit batch",
        "mark",
    ):
        assert f"**{word}**" in words, word
