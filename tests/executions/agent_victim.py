"""The agent of the example, killed with kill -9: `agent_victim LOG WITNESS CALL MOMENT`.

Each call of its model or of a tool is a line in WITNESS, on the disk before the call returns. MOMENT says where in the
given CALL (1, 2, …) it dies: `before` its step begins, or `during` it, when the call has just been made.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from examples import agent
from pydantic_ai import RunContext
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset

import holdfast
from holdfast.execution import AsyncContext

QUESTION = "Book me a flight to Bergen"


class Death:
    """Counts calls, witnesses them, and kills this process at one of them."""

    def __init__(self, witness: Path, call: int = 0, moment: str = "") -> None:
        self.witness, self.call, self.moment = witness, call, moment
        self.begun = 0

    def at(self, moment: str) -> None:
        self.begun += moment == "before"
        if self.begun == self.call and moment == self.moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def made(self, what: str) -> None:
        with self.witness.open("a") as file:
            file.write(f"{what}\n")
            file.flush()
            os.fsync(file.fileno())
        self.at("during")


class WitnessedModel(TestModel):
    def __init__(self, death: Death) -> None:
        super().__init__()
        self._death = death

    async def request(self, *given: Any) -> Any:
        answer = await super().request(*given)
        self._death.made("model")
        return answer


class WitnessedTools(WrapperToolset[None]):
    death: Death

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[None], tool: ToolsetTool[None]
    ) -> Any:
        given = await super().call_tool(name, tool_args, ctx, tool)
        self.death.made(name)
        return given


def run(log: holdfast.Log, death: Death) -> str:
    """One run of the example, with a witness in its model and its tools."""
    tools = WitnessedTools(agent.tools())
    tools.death = death
    plain = AsyncContext.step

    def step(ctx: Any, *given: Any, **options: Any) -> Any:
        death.at("before")
        return plain(ctx, *given, **options)

    AsyncContext.step = step  # type: ignore[method-assign, assignment]
    try:
        return asyncio.run(agent.ask(log, QUESTION, WitnessedModel(death), tools))
    finally:
        AsyncContext.step = plain  # type: ignore[method-assign]


if __name__ == "__main__":
    with holdfast.open(sys.argv[1]) as opened:
        print(run(opened, Death(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
