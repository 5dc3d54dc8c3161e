"""The command ``raybio push``: a trained model to the Hugging Face hub."""

from typing import Annotated

import typer

from raybio.cli.options import model_argument
from raybio.core.files import check_local
from raybio.runtime.model_paths import model_folder

app = typer.Typer(add_completion=False)

HELP = (
    "Push a trained model to the Hugging Face hub: weights, tokenizer, head and model card.\n\n"
    "The token is that of HF_TOKEN, or of `hf auth login`; HF_ENDPOINT names another hub. A "
    "repository that does not exist is created. One that holds a model of raybio is replaced "
    "in one commit.\n\n"
    "Example: raybio push runs/first OWNER/NAME --license apache-2.0"
)


@app.command(help=HELP)
def push(
    model: Annotated[str, model_argument("folder of a finished run, or its export/")],
    repository: Annotated[str, typer.Argument(metavar="REPO", help="OWNER/NAME")],
    private: Annotated[
        bool, typer.Option("--private", help="create a private repository; refuse a public one")
    ] = False,
    revision: Annotated[str, typer.Option(help="branch, created if it does not exist")] = "main",
    license_id: Annotated[
        str | None,
        typer.Option(
            "--license",
            help="license of the model, as the hub names it, such as apache-2.0; default: that of "
            "the base model, if its card states one",
        ),
    ] = None,
) -> None:
    """The command line; ``--help`` is ``HELP``."""
    check_local(repository, "REPO")
    folder = model_folder(model, "MODEL")
    # Imported here: the hub's client takes a second to import.
    from raybio.encoders.hub import push_folder

    pushed = push_folder(
        folder, repository, is_private=private, revision=revision, license_id=license_id
    )
    print(f"{pushed.url}: {pushed.num_files} files")
    if pushed.deleted:
        print(f"deleted, since the model does not have them: {', '.join(pushed.deleted)}")
    print(f'load it with raybio.load("{repository}"), or as the card of the repository says')
