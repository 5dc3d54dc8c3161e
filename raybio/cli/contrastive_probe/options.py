"""Options that the commands of Contrastive-Probe share."""

from typing import Annotated

import typer

from raybio.encoders.config import Pooling

BENCHMARK_HELP = "folder of the benchmark: MedLAMA's files, or a source of BioLAMA"
POOLING_HELP = (
    "pooling of a text's states; the paper: cls; default: from the model's folder, else cls"
)
QUERIES_HELP = "size of a fixed random sample of queries of each relation; default: all"

TextPooling = Annotated[Pooling | None, typer.Option(help=POOLING_HELP)]
