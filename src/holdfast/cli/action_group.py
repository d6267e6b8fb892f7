"""Verbs that have actions of their own: `holdfast spark read`, `holdfast spark pipeline run`. Each is a command."""

from __future__ import annotations

import click

from holdfast.suggestions import listed, meant


class Actions(click.Group):
    """A verb whose first word is an action. An unknown one is wrong usage, with what was meant; `no_args_is_help=False`
    makes none at all wrong usage, too.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The actions, in the order in which they were added."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The action that was asked for, or the one that was meant."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            known = meant(args[0], self.commands) or f"; {listed(self.commands)}"
            raise click.UsageError(f"no such action {args[0]!r}{known}", ctx)
        return super().resolve_command(ctx, args)
