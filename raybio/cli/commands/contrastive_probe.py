"""Commands of Contrastive-Probe: probes, baselines, free queries, expert sheets, and curves."""

import typer

from raybio.cli.contrastive_probe.baselines import baselines
from raybio.cli.contrastive_probe.curves import curves
from raybio.cli.contrastive_probe.probe import probe, sheet
from raybio.cli.contrastive_probe.query import ask

evaluate = typer.Typer()

for _command in (probe, baselines, ask, sheet, curves):
    evaluate.command()(_command)
