"""Serve a trained model over HTTP."""

import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from raybio.cli import options as shared
from raybio.cli.options import model_argument, positive
from raybio.runtime.model_paths import model_address

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    model: Annotated[str, model_argument("run, its export/, model folder or hub id")],
    index: Annotated[
        Path | None, typer.Option(help="index of its embeddings, for /neighbors")
    ] = None,
    pooling: shared.PoolingOption = None,
    host: Annotated[
        str, typer.Option(help="address to listen on; nobody is asked for a password")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="port to listen on")] = 8000,
    replicas: Annotated[int, typer.Option(min=1, help="number of processes")] = 1,
    cpus_per_replica: Annotated[
        float | None,
        typer.Option(parser=positive, metavar="FLOAT", help="logical CPUs of each process"),
    ] = None,
    max_inputs: Annotated[int, typer.Option(min=1, help="inputs of a request")] = 256,
    max_characters: Annotated[int, typer.Option(min=1, help="characters of an input")] = 20_000,
    verbose: shared.Verbose = False,
) -> None:
    """Serve a trained model by Ray Serve: /encode, /neighbors, /predict and /health.

    Example: raybio serve runs/first --index index/ --port 8000
    """
    chosen = model_address(model, "MODEL")
    # Imported here: torch and transformers take seconds to import.
    from raybio.runtime.cluster.stop_signals import StopSignals
    from raybio.runtime.serve.app import Limits
    from raybio.runtime.serve.server import serving

    served = serving(
        chosen,
        index,
        pooling=pooling,
        host=host,
        port=port,
        replicas=replicas,
        cpus_per_replica=cpus_per_replica,
        limits=Limits(max_inputs, max_characters),
        verbose=verbose,
    )
    with StopSignals() as signals:
        try:
            with served as address:
                signals.ray_has_started()
                if not signals.caught:
                    print(f"{chosen} is served at {address}; Ctrl-C ends it", flush=True)
                while not signals.caught:
                    time.sleep(0.2)
        except (KeyboardInterrupt, SystemExit) as error:  # while Ray is starting
            signals.count_exit(error)
        number = signals.caught[0]
    print(f"{signal.Signals(number).name}: {chosen} is no longer served")
    raise typer.Exit(128 + number)
