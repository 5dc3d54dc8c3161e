"""Extract relations from documents with annotated entities, by a model of relation_finetune."""

from pathlib import Path
from typing import Annotated

import typer

from raybio.cli.app import run_app
from raybio.cli.options import fraction
from raybio.cli.stores import matching
from raybio.core.files import check_writable_file
from raybio.runtime.run.folder import model_folder

app = typer.Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def extract(
    model: Annotated[str, typer.Option(help="run of relation_finetune, or its export/")],
    source: Annotated[
        list[str],
        typer.Option("--input", help="documents with entities, or patterns; quote patterns"),
    ],
    out: Annotated[
        Path, typer.Option(help="table, tab-separated: document, head, tail, relation, score")
    ],
    max_bad_share: Annotated[
        float,
        typer.Option(
            parser=fraction,
            metavar="FLOAT",
            help="maximum fraction of invalid documents or mentions",
        ),
    ] = 0.1,
) -> None:
    """Read PubTator, BioC or DocRED's JSON (.gz too), and write the predicted relations."""
    check_writable_file(out)
    files = matching(source)
    # Imported here: torch and transformers take seconds to import.
    from raybio.methods.mtb_mccl.mccl.predict import extract_relations

    num_relations = extract_relations(
        model_folder(model, "--model"), files, out, max_bad_share=max_bad_share, say=print
    )
    print(f"{out}: {num_relations:,} relations")


if __name__ == "__main__":
    run_app(app)
