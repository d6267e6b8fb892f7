"""The locks of the test and bench environment: whole, within what pyproject.toml allows, and silent about hosts."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
GROUPS = ("dev", "bench")


def lock(group: str) -> str:
    return (ROOT / "requirements" / f"{group}.lock").read_text(encoding="utf-8")


def locked(*groups: str) -> dict[str, list[Requirement]]:
    """The pinned versions, by package; some have one for each of several Pythons."""
    found: dict[str, list[Requirement]] = {}
    for group in groups:
        for line in re.findall(r"^(?! |#)(.+?) \\$", lock(group), flags=re.MULTILINE):
            requirement = Requirement(line)
            found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def asked(group: str) -> list[Requirement]:
    """What a group asks for, the project's own dependencies and all its extras with dev."""
    found = [Requirement(item) for item in PROJECT["dependency-groups"][group]]
    if group == "dev":
        about = PROJECT["project"]
        found += [Requirement(item) for item in about["dependencies"] + PROJECT["build-system"]["requires"]]
        found += [Requirement(item) for items in about["optional-dependencies"].values() for item in items]
    return [requirement for requirement in found if requirement.name != "holdfast-log"]


@pytest.mark.parametrize("group", GROUPS)
def test_everything_that_is_asked_for_is_locked_within_its_range(group: str) -> None:
    """Each dependency has a pinned version that pyproject.toml allows; `script/lock` makes it so."""
    pins = locked("dev", group) if group != "dev" else locked("dev")
    for requirement in asked(group):
        versions = [pin.specifier for pin in pins[canonicalize_name(requirement.name)]]
        for pin in versions:
            (exact,) = pin
            assert exact.operator == "=="
            assert requirement.specifier.contains(exact.version), requirement


@pytest.mark.parametrize("group", GROUPS)
def test_every_pin_has_hashes(group: str) -> None:
    """No line of a lock is without hashes, and none is anything else than a pin or a hash."""
    text = re.sub(r" \\\n +", " ", lock(group))
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == sum(map(len, locked(group).values())) > 5
    pin = re.compile(r"[a-z0-9._-]+(\[[a-z0-9,-]+\])?==\S+( ; [^#@]+?)?( --hash=sha256:[0-9a-f]{64})+")
    for line in lines:
        assert pin.fullmatch(line), line[:80]


@pytest.mark.parametrize("group", GROUPS)
def test_no_lock_names_a_host(group: str) -> None:
    """What is installed stands in a lock, not from where."""
    assert not re.search(r"://|--(index|extra|find)|@ |localhost|\.(org|com|net|io)\b", lock(group))


def test_the_locks_fit_together() -> None:
    """pip takes both files at once, so no package is pinned in both."""
    assert not locked("dev").keys() & locked("bench").keys()


def test_every_dependency_has_an_upper_bound() -> None:
    """A new major version is taken when somebody has tried it, not when it comes out."""
    for requirement in [*asked("dev"), *asked("bench")]:
        assert any(bound.operator in {"<", "=="} for bound in requirement.specifier), requirement
