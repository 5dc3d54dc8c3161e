"""The command ``raybio export``: a trained encoder as an ONNX graph."""

from pathlib import Path
from typing import Annotated

import typer

from raybio.cli.options import PoolingOption, model_argument
from raybio.core.files import check_writable_folder
from raybio.runtime.model_paths import local_model

app = typer.Typer(add_completion=False)

HELP = (
    "Export a trained encoder to ONNX: graph, tokenizer and a README with code.\n\n"
    "The graph reads tokens of any number and length, and computes pooled embeddings. It is "
    "compared with the encoder in onnxruntime first. It needs the extra onnx of raybio.\n\n"
    "Example: raybio export runs/first --onnx first-onnx/"
)


@app.command(help=HELP)
def export(
    model: Annotated[str, model_argument("folder of a finished run, its export/, or a hub id")],
    onnx: Annotated[Path, typer.Option(help="folder to write")],
    pooling: PoolingOption = None,
) -> None:
    """The command line; ``--help`` is ``HELP``."""
    check_writable_folder(onnx, "--onnx")
    folder = local_model(model, "MODEL")
    # Imported here: torch and transformers take seconds to import.
    from raybio.runtime.model_folders import model_of_folder
    from raybio.training.onnx_export import GRAPH, export_onnx

    chosen = model_of_folder(folder, pooling)
    print(chosen)
    replaced = " replaced" if (onnx / GRAPH).exists() else ""
    difference = export_onnx(chosen, onnx)
    print(f"{onnx / GRAPH}{replaced}: embeddings differ by at most {difference:.1e} in onnxruntime")
