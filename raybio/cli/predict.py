"""The command ``raybio predict``: predictions of a trained model for files of new inputs."""

from pathlib import Path
from typing import Annotated

import typer

from raybio.cli.options import (
    MaxBadShare,
    PrecisionOption,
    StripStop,
    encoders_in,
    model_argument,
    sources_option,
)
from raybio.cli.stores import matching
from raybio.core.files import check_writable_file
from raybio.runtime.heads import output_suffix, require_head
from raybio.runtime.model_paths import local_model

app = typer.Typer(add_completion=False)

HELP = (
    "Predict for new inputs with a trained model.\n\n"
    "finetune: classes with probabilities, numbers or residue tags of proteins (FASTA) or texts "
    "(one a line, or ID<TAB>TEXT), or of a table (.tsv, .csv, .jsonl, .parquet) with a column "
    '"sequence" or "text".\n\n'
    'relation_graphs: entities and relations of sentences: one a line, a column "text", or '
    "SpERT's JSON.\n\n"
    "relation_finetune: relations of documents with annotated entities: PubTator, BioC or "
    "DocRED's JSON.\n\n"
    "Files may be gzip.\n\n"
    "Example: raybio predict runs/folds --input proteins.fasta --out classes.tsv"
)


@app.command(help=HELP)
def predict(
    model: Annotated[
        str,
        model_argument(
            "run of finetune, relation_graphs or relation_finetune, its export/, or a hub id"
        ),
    ],
    source: Annotated[
        list[str], sources_option("files or patterns; quote patterns; repeatable", "--input")
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="table: .tsv, .jsonl or .parquet; of relation_finetune also documents: .pubtator "
            "or .json (BioC)"
        ),
    ],
    max_bad_share: MaxBadShare = 0.1,
    strip_stop: StripStop = False,
    precision: PrecisionOption = "fp32",
) -> None:
    """The command line; ``--help`` is ``HELP``."""
    check_writable_file(out)
    folder = local_model(model, "MODEL")
    predictor_module = require_head(folder).predictor
    assert predictor_module is not None
    output_suffix(out, predictor_module.document_suffixes)
    # This fetches files in a bucket, so it comes after all checks.
    files = matching(source)
    # Imported here: torch and transformers take seconds to import.
    from raybio.runtime.predict import predict_file, read_predictor

    predictor = read_predictor(folder)
    with encoders_in(precision):
        summary = predict_file(
            predictor,
            files,
            out,
            max_bad_share=max_bad_share,
            strip_stop=strip_stop,
            say=print,
        )
    print(f"{out}: {summary.num_rows:,} {summary.row_noun} for {summary.num_inputs:,} inputs")
