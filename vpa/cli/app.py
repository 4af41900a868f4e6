"""The command line application; each subcommand is a module beside this one."""

from __future__ import annotations

import typer

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
