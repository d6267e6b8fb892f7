"""What may be said about a step: how its effect behaves, how often it is tried, how long it may take.

Everything is checked when the step is called, before its place in the program counts: a step that could not be resolved
after a crash is refused on the first run, not after the crash.

    idempotent             running it again does no harm           its result is buffered
    at_least_once          it may happen again after a crash       its result is buffered
    exactly_once_guarded   its beginning is durable before it      its result is durable before the next step
                           runs; a crash in between is ambiguous
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, get_args

import msgspec

from holdfast.arguments import seconds, whole
from holdfast.errors import Invalid
from holdfast.execution.journal.entries import Effect, OnAmbiguous
from holdfast.execution.journal.execution_id import framed

EffectKind = Literal["cost_bearing", "destructive", "security_relevant", "money_moving", "custom"]
"""What a guarded effect is about: only a cost-bearing one has a policy unless it is given one."""

GUARDED = "exactly_once_guarded"
EFFECTS = get_args(Effect)
POLICIES = get_args(OnAmbiguous)
EFFECT_KINDS = get_args(EffectKind)

BACKOFF_S = 0.1
BACKOFF_MAX_S = 60.0
RETRIES_MAX = 1_000


class StepOptions(msgspec.Struct, frozen=True, gc=False):
    """Checked options of a step."""

    effect: Effect = "at_least_once"
    on_ambiguous: OnAmbiguous | None = None
    retries: int = 0
    backoff: float = BACKOFF_S
    timeout: float | None = None
    is_guarded: bool = False
    """Whether its intent must be durable before it runs."""
    is_simple: bool = True
    """Whether it is called once, whatever happens, and nobody waits for its result."""
    framed_effect: bytes = framed(b"at_least_once")
    """As it goes into keys."""

    def delay(self, failed: int) -> float:
        """Seconds between the attempt that failed and the next one; doubles each time."""
        return min(self.backoff * 2.0 ** min(failed - 1, 30), max(BACKOFF_MAX_S, self.backoff))


DEFAULT = StepOptions()


def step_options(
    effect: str, on_ambiguous: str | None, kind: str | None, retries: int, backoff: float, timeout: float | None
) -> StepOptions:
    """Options as they were given, checked."""
    try:
        return _known(effect, on_ambiguous, kind, retries, backoff, timeout)
    except TypeError:  # something that cannot be looked up: no option can be that
        return _checked(effect, on_ambiguous, kind, retries, backoff, timeout)


def _checked(
    effect: str, on_ambiguous: str | None, kind: str | None, retries: int, backoff: float, timeout: float | None
) -> StepOptions:
    if effect not in EFFECTS:
        raise Invalid(f"unknown effect={effect!r}", hint=f"one of {', '.join(EFFECTS)}")
    if on_ambiguous is not None and on_ambiguous not in POLICIES:
        raise Invalid(f"unknown on_ambiguous={on_ambiguous!r}", hint=f"one of {', '.join(POLICIES)}")
    if kind is not None and kind not in EFFECT_KINDS:
        raise Invalid(f"unknown effect_kind={kind!r}", hint=f"one of {', '.join(EFFECT_KINDS)}")
    retries = whole(retries, "retries")
    if not 0 <= retries <= RETRIES_MAX:
        raise Invalid(f"retries={retries} is not among 0 to {RETRIES_MAX}", hint="for instance retries=5")
    policy = _policy(effect, on_ambiguous, kind)
    if effect == GUARDED and retries and policy != "rerun":
        raise Invalid(
            "a guarded step that is tried again may happen twice",
            hint="leave retries out, or set on_ambiguous='rerun' if the other side detects a repeat by ctx.current.key",
        )
    return StepOptions(
        effect,  # type: ignore[arg-type]
        policy,  # type: ignore[arg-type]
        retries,
        seconds(backoff, "backoff"),
        None if timeout is None else seconds(timeout),
        effect == GUARDED,
        effect != GUARDED and not retries and timeout is None,
        framed(effect.encode()),
    )


_known = lru_cache(maxsize=512)(_checked)
"""A program gives the same options again and again."""


def _policy(effect: str, on_ambiguous: str | None, kind: str | None) -> str | None:
    if effect != GUARDED:
        if on_ambiguous is not None or kind is not None:
            raise Invalid(
                "on_ambiguous and effect_kind belong to guarded steps", hint="say effect='exactly_once_guarded'"
            )
        return None
    if on_ambiguous is None and kind != "cost_bearing":
        raise Invalid(
            "a guarded step needs a policy for an unknown outcome",
            hint="on_ambiguous='fail' stops and lets you decide, 'skip' takes it for done, 'rerun' runs it again",
        )
    return on_ambiguous or "skip"
