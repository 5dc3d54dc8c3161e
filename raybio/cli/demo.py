"""The command ``raybio demo``: a method on its built-in corpus."""

from typing import Annotated

import typer

from raybio.cli import options
from raybio.methods import METHODS, method_named
from raybio.runtime.run.options import RunOptions, check_writable, resolve

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    method: Annotated[str, typer.Argument(help=f"one of {', '.join(METHODS)}")] = "sppt_protein",
    dry_run: options.DryRun = False,
    verbose: options.Verbose = False,
) -> None:
    """Train a method on its built-in corpus, and print the table.

    The default takes 5 minutes on two cores.

    The same command resumes the run.

    Example: raybio demo biostransformers --dry-run
    """
    comparison = method_named(method).comparison
    spec = resolve(method, RunOptions(verbose=verbose))
    if not dry_run:
        check_writable(spec.runs, spec.bucket)
    from raybio.cli.train_and_compare import train_and_compare

    compared = () if comparison is None else (comparison,)
    train_and_compare({"": spec}, compared, seeds=1, is_dry_run=dry_run)
    if not dry_run:
        print(
            "Next, your own data: `raybio prepare` lists the formats, and "
            f"`raybio train {spec.method} --store STORE` trains on it"
        )
