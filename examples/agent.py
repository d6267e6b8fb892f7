"""An agent that survives kill -9: each call of its model and of its tools is a step, and no call is made twice.

    python examples/agent.py LOG "Book me a flight to Bergen"
    python examples/agent.py LOG "Book me a flight to Bergen"        # again: answered from the log, nothing is called

It is an ordinary agent of pydantic-ai, here with its test model, so it needs no network and no key. `DurableModel` and
`DurableTools` are all that makes it durable; put your own model and tools into them. The question decides the id of the
execution: whoever asks the same again goes on where the last run stopped, also if that was killed half way.

Calls are guarded: that one begins is in the log before it does, and its result before anything builds on it. A run that
is killed *during* a call leaves a call of which nobody knows whether it happened. Asking a model again, or searching,
does no harm: such a call is made again. Booking is not: the next run stops there with AmbiguousEffect and the command
that tells it how it was.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool, WrapperToolset
from pydantic_core import from_json, to_json

import holdfast
from holdfast import Log
from holdfast.execution import AsyncContext

ONCE = {"book_flight"}
"""Tools that nobody may call again without knowing."""


# -- what makes an agent durable ----------------------------------------------------------------------------------


class DurableModel(WrapperModel):
    """A model whose answers are steps of an execution."""

    def __init__(self, wrapped: Model, execution: AsyncContext) -> None:
        super().__init__(wrapped)
        self._execution = execution

    async def request(
        self, messages: list[ModelMessage], model_settings: ModelSettings | None, parameters: ModelRequestParameters
    ) -> ModelResponse:
        """Ask the model, or give what it answered before."""

        async def asked() -> bytes:
            answer = await self.wrapped.request(messages, model_settings, parameters)
            return ModelMessagesTypeAdapter.dump_json([answer])

        answer = await self._execution.step(
            "model", asked, fingerprint=said(messages), effect="exactly_once_guarded", on_ambiguous="rerun"
        )
        (found,) = ModelMessagesTypeAdapter.validate_json(answer)
        assert isinstance(found, ModelResponse)
        return found


@dataclass
class DurableTools(WrapperToolset[None]):
    """Tools whose calls are steps of an execution."""

    execution: AsyncContext

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[None], tool: ToolsetTool[None]
    ) -> Any:
        """Call the tool, or give what it gave before."""

        async def called() -> bytes:
            return to_json(await self.wrapped.call_tool(name, tool_args, ctx, tool))

        given = await self.execution.step(
            f"tool {name}",
            called,
            fingerprint=[tool_args, ctx.tool_call_id],
            effect="exactly_once_guarded",
            on_ambiguous="fail" if name in ONCE else "rerun",
        )
        return from_json(given)


def said(messages: Sequence[ModelMessage]) -> list[list[object]]:
    """What was said so far, without the times and ids that every run has of its own."""
    return [
        [part.part_kind, getattr(part, "tool_name", None), getattr(part, "tool_call_id", None), _content(part)]
        for message in messages
        for part in message.parts
    ]


def _content(part: object) -> object:
    return to_json([getattr(part, "content", None), getattr(part, "args", None)])


# -- an agent -----------------------------------------------------------------------------------------------------


def tools() -> FunctionToolset[None]:
    """What the agent can do; one after the other."""
    made: FunctionToolset[None] = FunctionToolset(sequential=True)

    @made.tool_plain
    def search_flights(city: str) -> list[str]:
        """Flights to a city."""
        return [f"HF {number} to {city}" for number in (17, 4711)]

    @made.tool_plain
    def book_flight(flight: str) -> dict[str, str]:
        """Book a flight, and pay for it."""
        return {"flight": flight, "seat": "12A"}

    return made


async def ask(log: Log, question: str, model: Model | None = None, able: AbstractToolset[None] | None = None) -> str:
    """The agent's answer; from the log as far as it was given before."""
    execution = log.execution("agent", id=holdfast.execution_id("agent", question))
    async with execution as ctx:
        agent = Agent(DurableModel(model or TestModel(), ctx), toolsets=[DurableTools(able or tools(), ctx)])
        answer = await agent.run(question)
        ctx.set_result(answer.output)
        return answer.output


def main() -> None:
    """Ask, print, and say how much of it was new."""
    parser = argparse.ArgumentParser(description="Ask an agent that survives kill -9.")
    parser.add_argument("log", help="a directory for the log")
    parser.add_argument("question", help="what to ask; the same question is the same execution")
    given = parser.parse_args()
    with holdfast.open(given.log) as log:
        try:
            print(asyncio.run(ask(log, given.question)))
        except holdfast.HoldfastError as error:
            raise SystemExit(f"agent: {error}") from None


if __name__ == "__main__":
    main()
