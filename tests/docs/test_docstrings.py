"""The examples in docstrings are true: each prints what it says."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

SRC = Path(__file__).parents[2] / "src"
MODULES = [
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SRC.rglob("*.py"))
    if b">>> " in path.read_bytes()
]


@pytest.mark.sampled(len(MODULES))
@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_print_what_they_say(module: str):
    """Only modules with examples are loaded: pytest's own doctests would load everything in every worker."""
    result = doctest.testmod(import_module(module))  # what differs is printed
    assert not result.failed
