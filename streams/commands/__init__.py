"""One command a file: each module has a function `run` with typer options, listed in `streams.cli.COMMANDS`."""
