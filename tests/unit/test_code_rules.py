"""The house itself: public names, lazy imports, the closed set of backends, no time or randomness elsewhere."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import typing
from collections import Counter
from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from holdfast.journal import backend
from holdfast.journal.sqlite.sqlite_backend import SqliteBackend
from holdfast.owner.verbs import VERBS

pytestmark = pytest.mark.unit


def fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_public_names_are_sorted_complete_and_real():
    """__all__ is sorted, every name resolves, and dir() shows them."""
    assert list(holdfast.__all__) == sorted(holdfast.__all__)
    assert set(holdfast.__all__) == set(holdfast._HOMES)
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
        assert name in dir(holdfast)
    with pytest.raises(AttributeError, match="nope"):
        holdfast.nope  # noqa: B018


def test_there_are_few_public_names():
    """A reader of `dir(holdfast)` reads a short list. (The 31st: `connect`, the other way to get a log.)"""
    assert len(holdfast.__all__) <= 31


def test_importing_holdfast_loads_nothing():
    """`import holdfast` loads no writer, no database, no crypto and no asyncio."""
    heavy = ("apsw", "asyncio", "cryptography", "msgspec", "holdfast.journal")
    code = f"import sys, holdfast; print([m for m in {heavy} if m in sys.modules])"
    assert fresh(code) == "[]"


def test_a_log_that_seals_nothing_loads_no_arrow_and_nothing_of_sharing():
    """Opening a log, appending and reading what is not sealed: a process that does no more starts in half the time."""
    heavy = ("numpy", "pyarrow", "holdfast.sharing.hosting.host", "holdfast.shipping.shipper")
    code = (
        "import sys, tempfile, holdfast\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    with holdfast.open(folder, settings={'segments': {'seal_on_close': False}}) as log:\n"
        "        log.topic('t').append(b'a')\n"
        "        assert [record.payload for record in log.topic('t').read()] == [b'a']\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    assert fresh(code) == "[]"


def test_errors_can_be_named_without_a_writer():
    """Catching an error does not drag in the journal."""
    assert fresh("import sys, holdfast; holdfast.Corrupt; print('holdfast.journal' in sys.modules)") == "False"


def test_the_set_of_backends_is_closed():
    """There is one backend, named by a type; nothing registers another."""
    members = typing.get_args(backend.Backend) or (backend.Backend,)
    assert members == (SqliteBackend,)
    assert not inspect.isabstract(SqliteBackend)
    assert SqliteBackend.__subclasses__() == []
    doors = {name for name in backend.__all__ if name[0].islower()}
    assert doors == {"create_backend", "open_backend"}


def test_every_error_has_one_root_and_a_hint():
    """All kinds descend from HoldfastError and can say what to do; copies keep everything."""
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.HoldfastError)]
    everyday = [kind for kind in kinds if not issubclass(kind, errors.ExecutionError)]
    assert (len(everyday), len(kinds) - len(everyday)) == (11, 10)
    cases = [
        errors.Invalid("m", hint="h"),
        errors.Full("m"),
        errors.Denied("m"),
        errors.Closed("m", reason="poisoned"),
        errors.Corrupt("m", path="p", topic="t", partition=1, offset=2),
        errors.Undecodable("m", topic="t", partition=1, offset=2),
        errors.OutcomeUnknown("m", idempotency_key=b"k"),
        errors.Expired("m", hint="h", first=3),
        errors.Diverged("m", path="p", recorded=b"a", asked=b"b"),
        errors.AmbiguousEffect("m", path="p", key=b"k"),
        errors.ExecutionHeld("m", holder="thread:x"),
        errors.StepFailed("m", path="p", type_name="x.Y", hint="h"),
        errors.PromiseFailed("m", reason="no", hint="h"),
    ]
    for case in cases:
        case.__cause__ = ValueError("root")
        twin = case.again()
        assert type(twin) is type(case)
        assert twin is not case
        assert (str(twin), twin.hint, vars(twin)) == (str(case), case.hint, vars(case))
        assert twin.__cause__ is case.__cause__
        assert "hint:" in str(case)
    assert str(errors.Corrupt("m", path="p", offset=2)).startswith("m path=p offset=2")


def test_version_is_one():
    """The package and its metadata tell the same version."""
    from importlib.metadata import version

    assert holdfast.__version__ == version("holdfast-log")


def test_every_test_module_names_its_cost():
    """Each has a tier, so that `script/test` can run one tier alone."""
    root = Path(__file__).parents[1]
    named = re.compile(r"pytest\.mark\.(unit|disk|store|crash|spark|browser|soak)\b")
    assert not [
        str(path.relative_to(root)) for path in root.rglob("test_*.py") if not named.search(path.read_text("utf-8"))
    ]


def test_the_name_of_a_public_class_occurs_once():
    """A stranger who searches for a class finds one."""
    root = Path(holdfast.__file__).parents[1]
    names = Counter(
        node.name
        for path in root.rglob("*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not [name for name, count in names.items() if count > 1]


def test_what_counts_twice_is_asked_once():
    """Only verbs that the table calls repeatable are asked again when the owner dies meanwhile (`Asking.ask`)."""
    asked = {
        node.args[0].value if isinstance(node.args[0], ast.Constant) else ast.unparse(node.func.value).lower()
        for path in Path(holdfast.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"ask", "_ask"}
        and node.args
    } & VERBS.keys()
    assert len(asked) > 20
    assert not {name for name in asked if not VERBS[name].repeatable}
