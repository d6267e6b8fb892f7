"""Which versions of Spark this works with, and why it cannot be used where it cannot: one sentence for its user.

The package index keeps to these versions; a cluster brings its own Spark, which may be any. So this imports nothing of
Spark but its number.
"""

from __future__ import annotations

import re
from importlib import import_module

import pyspark

from holdfast.errors import Invalid

OLDEST, NEWEST = (4, 0), (4, 3)


def spark_version() -> str:
    """The version of the Spark that is installed here."""
    return str(pyspark.__version__)


def problem(module: str) -> Invalid | None:
    """Why a module of ours cannot be used here: another Spark, or a package that is missing."""
    try:
        check_supported()
        import_module(module)
    except Invalid as error:
        return error
    except ImportError as error:
        return Invalid(
            f"{module} cannot be loaded by the Python that Spark runs: {error} spark={spark_version()}",
            hint="pip install holdfast-log there: on the driver and on each executor",
        )
    return None


def check_supported() -> None:
    """Refuse (Invalid) a Spark that is older or newer than those that this was tested with."""
    found = tuple(int(number) for number in re.findall(r"\d+", spark_version())[:2])
    if not OLDEST <= found <= NEWEST:
        oldest, newest = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
        age = "older" if found < OLDEST else "newer"
        raise Invalid(
            f"holdfast works with Spark {oldest} to {newest}, and this one is {age} spark={spark_version()}",
            hint=f"run it on Spark {oldest} or newer" if found < OLDEST else "upgrade holdfast-log",
        )
