"""The command line application; each subcommand is a module beside this one."""

from __future__ import annotations

from typing import Any, Final

import typer

from vpa.flags import FlagError, HelpRequested, Parsed, Table

TAKES_FLAGS: Final[dict[str, Any]] = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of a command that also takes flags of a service, see `parse`."""

app = typer.Typer(
    name="vpa",
    help="Vertical Pod Autoscaler: recommendations, admission and updates, explained, without a cluster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain errors of one line
)


@app.callback()
def _root() -> None:
    """Keeps `vpa COMMAND` a group even while it has one command."""


def parse(table: Table, context: typer.Context) -> Parsed:
    """The flags of *table* among what a command was given; asked for help it prints them and ends."""
    try:
        return table.parse(context.args)
    except HelpRequested:
        print(table.help())
        raise typer.Exit from None
    except FlagError as error:
        raise typer.BadParameter(str(error)) from None
