"""The functions that a worker runs, by kind, and how they are called. Pure.

A function gets a context first, then what it was started with. Arguments come back as the types that its annotations
name, or else as plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, Signature, signature
from typing import Any, NamedTuple, get_type_hints

from holdfast.errors import Invalid
from holdfast.execution.journal.execution_id import checked_name
from holdfast.execution.steps.step_values import PLAIN, codec_of, function_of
from holdfast.execution.work.calls import decode_call

_EXAMPLE = "log.worker([import_orders]), or log.worker({'import': import_orders})"


class WorkFunction(NamedTuple):
    """A function, examined."""

    kind: str
    call: Callable[..., Any]
    is_async: bool
    signature: Signature | None
    types: Mapping[str, Any]

    def arguments(self, body: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What it is called with, behind the context; raises Invalid if it cannot be called like that."""
        given = decode_call(body)
        if self.signature is None:
            return tuple(given.args), dict(given.kwargs)
        try:
            bound = self.signature.bind(None, *given.args, **given.kwargs)
        except TypeError as error:
            raise Invalid(
                f"the function of {self.kind!r} cannot be called with what this execution was started with: {error}",
                hint="start it with the arguments that the function takes",
            ) from None
        for name, value in bound.arguments.items():
            if (wanted := self.types.get(name)) is not None and self._is_plain(name):
                bound.arguments[name] = _typed(value, wanted, name)
        return bound.args[1:], bound.kwargs

    def _is_plain(self, name: str) -> bool:
        assert self.signature is not None
        return self.signature.parameters[name].kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def work_functions(given: object) -> dict[str, WorkFunction]:
    """Functions by kind, examined."""
    if callable(given) or isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise Invalid("functions are a list of functions, or a mapping from kinds to functions", hint=_EXAMPLE)
    pairs = given.items() if isinstance(given, Mapping) else [(getattr(one, "__name__", ""), one) for one in given]
    found: dict[str, WorkFunction] = {}
    for kind, call in pairs:
        if not callable(call):
            raise Invalid(f"a worker runs functions, not a {type(call).__name__}", hint=_EXAMPLE)
        if kind == "<lambda>":
            raise Invalid("a lambda has no name that could be a kind", hint=_EXAMPLE)
        if kind in found:
            raise Invalid(f"two functions have the kind {kind!r}", hint="give a mapping with a kind for each")
        found[checked_name(kind, "kind")] = _examined(kind, call)
    if not found:
        raise Invalid("a worker needs a function", hint=_EXAMPLE)
    return found


def _examined(kind: str, call: Callable[..., Any]) -> WorkFunction:
    is_async = function_of(call).is_async
    try:
        shape = signature(call)
    except (TypeError, ValueError):  # a builtin
        return WorkFunction(kind, call, is_async, None, {})
    try:
        hints = get_type_hints(call)
    except Exception:  # names that are only there for type checkers
        hints = {}
    first = next(iter(shape.parameters), None)
    hints.pop("return", None)
    types = {name: hint for name, hint in hints.items() if name != first and hint is not Any}
    return WorkFunction(kind, call, is_async, shape, types)


def _typed(value: Any, wanted: Any, name: str) -> Any:
    payload, _ = PLAIN.encode(value, name)
    return codec_of(wanted).decode(payload, name)
