"""A Python file with a pipeline in it: loaded as a module, and what it has found.

A `Pipeline` in the file is taken as it is; of several, the one that is named. Without one, all tables of the file make
one, at the places that are given. Errors in the file are reported with their line, and without our own stack: it is the
user's code. Its folder can be imported from, as if Python ran the file. Functions of the file travel to Spark's workers
as code, not by name: no worker can import it.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, Invalid, NotFound
from holdfast.suggestions import listed, meant
from pyspark_holdfast.pipeline.command.command_line import PlaceOverrides, with_places
from pyspark_holdfast.pipeline.table_definition import Table

if TYPE_CHECKING:
    from pyspark_holdfast.pipeline.pipeline import Pipeline

_MODULE = "holdfast_pipeline_file"
_INSTALL = "pip install 'holdfast-log[spark]'"


def load_pipeline(path: Path, name: str | None, places: PlaceOverrides) -> Pipeline:
    """The pipeline of a file. Raises Invalid or NotFound, before anything of it has run."""
    try:
        from pyspark_holdfast.versions.supported import problem
    except ModuleNotFoundError:
        raise Invalid("a pipeline needs the extra 'spark'", hint=_INSTALL) from None
    refusal = problem("pyspark_holdfast.pipeline.pipeline")
    if refusal is not None:
        raise refusal
    from pyspark_holdfast.pipeline.pipeline import Pipeline

    found = vars(load_file(path))
    pipelines = _distinct(found, Pipeline)
    if pipelines:
        return with_places(_chosen(path, pipelines, name), places)
    tables = _distinct(found, Table)
    if not tables:
        raise Invalid(
            f"there is no table and no pipeline in this file path={path}",
            hint="make tables with @table, and a Pipeline of them: docs/howto/pipeline.md",
        )
    if places.root is None or places.tables is None:
        raise Invalid(
            f"there is no Pipeline in this file, and no place is given for its tables path={path}",
            hint="give --root and --tables, or put a Pipeline(…) into the file",
        )
    options = {**places.defaults, **places.options}
    return Pipeline(name or _name_of(path), of=tables, options=options, **places.changes)


def load_file(path: Path) -> ModuleType:
    """A file as a module."""
    full = path.absolute()
    if not full.is_file():
        raise NotFound(f"there is no such file path={path}", hint="give a Python file with tables in it")
    loader = SourceFileLoader(_MODULE, str(full))
    spec = spec_from_file_location(_MODULE, full, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    _let_import(str(full.parent))
    sys.modules[_MODULE] = module
    try:
        loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too: a file that runs itself when it is imported
        raise _explained(error, path) from error
    _send_as_code(module)
    return module


def _let_import(folder: str) -> None:
    """Modules beside the file can be imported, here and in workers that this machine starts."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    known = os.environ.get("PYTHONPATH", "")
    if folder not in known.split(os.pathsep):
        os.environ["PYTHONPATH"] = folder + (os.pathsep + known if known else "")


def _send_as_code(module: ModuleType) -> None:
    try:
        from pyspark.cloudpickle import register_pickle_by_value
    except ImportError:  # without Spark nothing is sent; its starter says what is missing
        return
    register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _explained(error: BaseException, path: Path) -> HoldfastError:
    """What went wrong in the file, with its line."""
    line = _line_of(error, path.absolute())
    where = f"{path}:{line}" if line else str(path)
    if isinstance(error, HoldfastError):
        return Invalid(f"{where}: {error.message}", hint=error.hint)
    if isinstance(error, SystemExit):
        return Invalid(
            f"{where}: the file ended the program when it was loaded",
            hint='put what runs it under `if __name__ == "__main__":`',
        )
    message = _syntax(error, path.absolute()) if isinstance(error, SyntaxError) else str(error)
    first = message.strip().splitlines()[0] if message.strip() else ""
    words = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return Invalid(f"{where}: {words}", hint=_hint(error, path, first))


def _hint(error: BaseException, path: Path, message: str) -> str:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "pyspark":
        return _INSTALL
    if "SESSION_OR_CONTEXT_NOT_EXISTS" in message:
        return (
            "Spark starts after the file is loaded: give types as objects (LongType(), not 'bigint'), and make "
            "columns inside of the functions of tables"
        )
    return f"`python {path}` shows the whole traceback"


def _syntax(error: SyntaxError, full: Path) -> str:
    """What is wrong; and where, if that is in a file that this one imports."""
    elsewhere = error.filename is not None and error.filename != str(full)
    return f"{error.msg} ({error.filename}:{error.lineno})" if elsewhere else error.msg


def _line_of(error: BaseException, full: Path) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == str(full):
        return error.lineno
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(full)]
    return lines[-1] if lines else None


def _distinct(found: Mapping[str, Any], kind: type[Any]) -> list[Any]:
    """Values of a kind, each once, also those in lists."""
    return list({id(value): value for value in _values(found) if isinstance(value, kind)}.values())


def _values(found: Mapping[str, Any]) -> Iterator[Any]:
    for value in found.values():
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def _chosen(path: Path, pipelines: list[Pipeline], name: str | None) -> Pipeline:
    names = [one.name for one in pipelines]
    if name is None and len(pipelines) == 1:
        return pipelines[0]
    if name is None:
        raise Invalid(f"there are several pipelines in this file path={path}", hint=f"--pipeline NAME; {listed(names)}")
    for one in pipelines:
        if one.name == name:
            return one
    raise NotFound(f"there is no pipeline {name!r} in this file{meant(name, names)} path={path}", hint=listed(names))


def _name_of(path: Path) -> str:
    """A pipeline's name by its file."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", path.stem).lstrip(".-") or "pipeline"
