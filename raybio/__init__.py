"""raybio: pre-train, fine-tune, probe and tune biomedical encoders on a Ray cluster."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from raybio.core.version import VERSION

if TYPE_CHECKING:
    from raybio.core.location import BucketPath
    from raybio.runtime.load import TrainedModel
    from raybio.runtime.search.index import EmbeddingIndex
    from raybio.runtime.train import Run
    from raybio.store.store import Store

__version__ = VERSION


def train(
    method: str,
    *,
    store: "str | os.PathLike[str] | BucketPath | None" = None,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    recipe: str | None = None,
    name: str | None = None,
    runs: "str | os.PathLike[str] | BucketPath | None" = None,
    tracking_uri: str | None = None,
    workers: int | None = None,
    cpus_per_worker: float | None = None,
    device: Literal["auto", "cpu", "gpu"] = "auto",
    accepts_long_run: bool = False,
    verbose: bool = False,
) -> "Run":
    """Train a method as ``raybio train METHOD --no-baseline`` does, and return the run.

        run = raybio.train("sppt_protein", store="stores/mine", config={"schedule.max_steps": 200})
        run.result.metrics["val/link_mrr"]
        run.load().encode(["MKTAYIAKQR"])  # float32 (1, D)

    It trains in the Ray cluster that this process has joined (``ray.init``) or that ``RAY_ADDRESS``
    names, else in one that it starts on this machine and ends. The same call again resumes a run
    that was interrupted, and returns a finished one without training.

    Args:
        method: a method, such as ``sppt_protein``; ``raybio train --help`` lists them.
        store: folder of a prepared store, or its path in a bucket; None: the method's built-in
            corpus, with the settings of its demo.
        config: settings that differ from the method's or the recipe's: a mapping of dotted paths or
            of nested names to values, or the path of a YAML file.
        recipe: settings that come with the method, or ``demo``.
        name: name of the run; None: made from settings and store.
        runs: folder of all runs, or their path in a bucket; None: ``RAYBIO_RUNS``, or ``runs``.
        tracking_uri: of MLflow; None: ``mlflow.db`` next to ``runs``.
        workers: training workers; None: 1, or as the run began.
        cpus_per_worker: logical CPUs that each worker reserves; None: chosen by what there is.
        device: ``auto`` takes GPUs if there is one for each worker.
        accepts_long_run: the run may take more than a day on CPUs.
        verbose: show Ray's own logs.

    Raises:
        ConfigError: for wrong arguments or settings.
        StoreError: if the store is missing or damaged.
        CheckpointError: if the run of that name has other settings or another store.
        ClusterError: if the plan does not fit, or the workers kept failing.
        DivergedError: if the loss is no longer finite.
        InterruptedRunError: if a signal, such as Ctrl-C, ended the run after a checkpoint.
    """
    # Imported here: torch and transformers take seconds to import.
    from raybio.runtime.train import train as train_method

    return train_method(
        method,
        store=store,
        config=config,
        recipe=recipe,
        name=name,
        runs=runs,
        tracking_uri=tracking_uri,
        workers=workers,
        cpus_per_worker=cpus_per_worker,
        device=device,
        accepts_long_run=accepts_long_run,
        verbose=verbose,
    )


def load(
    model: "str | os.PathLike[str]", pooling: Literal["mean", "cls"] | None = None
) -> "TrainedModel":
    """Return a trained model.

        model = raybio.load("runs/first")
        model.encode(["MKTAYIAKQR"])  # float32 (1, D)
        model.predict(["MKTAYIAKQR"])  # of a fine-tuned model

    Every export but one encodes: that of ``relation_graphs`` over CharacterBERT embeds words in
    their context (``raybio embed``) and predicts; its ``encodes`` is False.

    Args:
        model: a run of ``raybio.train``, the folder of a finished run, its ``export/``, any folder
            that ``save_pretrained`` or sentence_transformers wrote, the URI of such a folder in a
            bucket, or a hub id.
        pooling: of a model that does not state it, such as ``facebook/esm2_t6_8M_UR50D``.

    Raises:
        ConfigError: if there is no model, or it cannot be fetched.
        StorageError: if it lies in a bucket that is missing, refuses or does not answer.
    """
    # Imported here: torch and transformers take seconds to import.
    from raybio.runtime.load import load as load_model

    return load_model(model, pooling)


def open_index(
    folder: "str | os.PathLike[str]",
    model: "str | os.PathLike[str] | None" = None,
    pooling: Literal["mean", "cls"] | None = None,
) -> "EmbeddingIndex":
    """Open an index that ``raybio search index`` saved.

        index = raybio.open_index("index", model="runs/first")
        index.search(["MKTAYIAKQR"], k=10).keys

    Args:
        folder: the index.
        model: what made its embeddings, as for ``load``. Without it, queries are embeddings.
        pooling: of a model that does not state it.

    Raises:
        ConfigError: if there is no such model, or faiss is not installed.
        StoreError: if there is no index, it is damaged, or its embeddings come from another model.
    """
    from raybio.runtime.search.index import open_index as open_saved_index

    return open_saved_index(folder, model, pooling)


def open_store(path: "str | os.PathLike[str] | BucketPath", *, verify: bool = False) -> "Store":
    """Open a prepared store, as the class of its kind.

        store = raybio.open_store("stores/proteins")
        store.to_pyg("train")  # the graph of proteins or articles, for torch_geometric

    Args:
        path: its folder, or its path in a bucket.
        verify: also check the sha256 of every file that this machine has not verified yet.

    Raises:
        ConfigError: for a URI that is not supported.
        StorageError: if it cannot be fetched from a bucket.
        StoreError: if the store is missing, unfinished or damaged.
    """
    from raybio.runtime.any_store import open_any_store

    return open_any_store(path, verify=verify)  # type: ignore[arg-type]
