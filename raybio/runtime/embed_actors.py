"""Actors of Ray Data that embed the parts of an input, and the format of what they write."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from raybio.core.digest import digest_of
from raybio.core.errors import ClusterError, RaybioError, first_line
from raybio.core.location import BucketPath, Location
from raybio.runtime.cluster.resources import Resources
from raybio.runtime.embed_output import NumberType, Unit
from raybio.runtime.embed_parts import Parts
from raybio.runtime.run.duration import in_words
from raybio.runtime.run.spec import LeaseKey
from raybio.runtime.spool.lease import AN_EMBEDDING, check_key
from raybio.runtime.task_errors import NO_ERROR, error_columns, raise_error_of
from raybio.store.remote_model import fetch_bucket_model
from raybio.training.embedding_model import EmbeddingModel, InputEmbedder
from raybio.training.precision import embedding_precision, resolve_precision
from raybio.training.settings import EmbeddingPrecision

PROGRESS_SECONDS = 30.0
"""Minimum time between two progress lines of an embedding."""


@dataclass(frozen=True)
class EmbeddingFormat:
    """The arithmetic of a bulk embedding, and how its output is stored.

    Attributes:
        dtype: dtype of the stored numbers: "float32" or "float16".
        precision: precision of the encoder: "fp32", "tf32" or "bf16". Pooling and output are not
            rounded.
        per: "input", or "token" for the hidden states of each token instead of their pooling.
    """

    dtype: NumberType = "float32"
    precision: EmbeddingPrecision = "fp32"
    per: Unit = "input"

    def digest(self, model_digest: str) -> str:
        """Return a digest that identifies embeddings of a model in this format."""
        if self == EmbeddingFormat():
            return model_digest
        content = {"model": model_digest, "dtype": self.dtype, "precision": self.precision}
        if self.per != "input":
            content["per"] = self.per
        return digest_of(content)


DEFAULT_FORMAT = EmbeddingFormat()


def embed_parts(
    actor_arguments: tuple[Any, ...],
    missing: list[int],
    resources: Resources,
    *,
    verbose: bool,
    say: Callable[[str], None],
) -> None:
    """Embed parts by actors of Ray Data, one per worker."""
    import ray.data

    context = ray.data.DataContext.get_current()
    # There is no progress while a part is embedded, which takes a large model on CPUs an hour.
    context.execution_no_progress_timeout_s = -1
    context.enable_progress_bars = False
    context.print_on_execution_start = verbose
    if not verbose:
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        # Ray Data warns if its progress bars are off.
        logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)
    num_actors = min(resources.num_workers, len(missing))
    dataset = ray.data.from_arrow([pa.table({"part": [number]}) for number in missing]).map_batches(
        _EmbedPart,
        fn_constructor_args=(*actor_arguments, resources.threads_per_worker, resources.device),
        batch_size=None,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=num_actors),
        num_cpus=resources.cpus_per_worker,
        num_gpus=resources.gpus_per_worker or None,
    )
    num_embedded = 0
    started = last_said = time.monotonic()
    for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
        for row in batch.to_pylist():
            raise_error_of(row)
        num_embedded += batch.num_rows
        now = time.monotonic()
        # Until each actor has embedded a part, the estimate would ignore parts in progress.
        is_known = num_actors <= num_embedded < len(missing)
        if is_known and now - last_said >= PROGRESS_SECONDS:
            last_said = now
            left = (now - started) / num_embedded * (len(missing) - num_embedded)
            say(f"{num_embedded:,} of {len(missing):,} parts, about {in_words(left)} left")


class _EmbedPart:
    """A Ray Data actor: loads the model once, then turns input parts into output parts."""

    def __init__(
        self,
        model: InputEmbedder,
        model_in_bucket: BucketPath | None,
        form: EmbeddingFormat,
        parts: Location,
        lease: LeaseKey | None,
        threads: int | None,
        device: str = "cpu",
    ) -> None:
        self.parts = Parts(parts)
        if lease is not None:
            # A worker may outlive its driver for a while, so it checks the lease.
            self.parts = Parts(parts, partial(check_key, lease, AN_EMBEDDING))
        self.form = form
        self.failure: RaybioError | OSError | None = None
        if threads is not None:
            torch.set_num_threads(threads)
        try:
            self._load(model, model_in_bucket, device)
        except (RaybioError, OSError) as error:
            # If it were raised here, the driver would get an error of Ray instead.
            self.failure = error

    def _load(self, model: InputEmbedder, model_in_bucket: BucketPath | None, device: str) -> None:
        if model_in_bucket is not None:
            model = replace(model, folder=str(fetch_bucket_model(model_in_bucket, "--model")[1]))
        self.encoder = model.load().to(device)
        self.precision = resolve_precision(self.form.precision, device)
        self.dtype = np.dtype(self.form.dtype)
        self.embed = model.embed_table
        if self.form.per == "token":
            assert isinstance(model, EmbeddingModel)
            self.embed = model.embed_token_table
        # The digest is computed after loading: if the folder was overwritten since the start, the
        # driver does not accept the parts.
        self.part_digest = self.form.digest(model.digest())

    def __call__(self, batch: pa.Table) -> pa.Table:
        rows = []
        for number in batch.column("part").to_pylist():
            try:
                if self.failure is not None:
                    raise self.failure
                self._embed(number)
                rows.append(NO_ERROR)
            except (RaybioError, OSError) as error:
                rows.append(error_columns(error))
            except torch.OutOfMemoryError as error:
                # Smaller parts would not help: the largest forward pass has as many tokens.
                advice = "another --out with --precision bf16, or a GPU with more memory"
                rows.append(error_columns(_out_of_memory(number, error, advice)))
            except MemoryError as error:
                advice = "another --out with fewer --rows-per-part, or a machine with more memory"
                rows.append(error_columns(_out_of_memory(number, error, advice)))
        return pa.Table.from_pylist(rows)

    def _embed(self, number: int) -> None:
        table, input_digest = self.parts.read_input(number)
        with embedding_precision(self.precision):
            contents = table.column("content").to_pylist()
            embedded = self.embed(self.encoder, table.column("key"), contents, self.dtype)
        self.parts.write(number, embedded, input_digest=input_digest, model_digest=self.part_digest)


def _out_of_memory(number: int, error: Exception, advice: str) -> ClusterError:
    return ClusterError(
        f"part {number:,}: {first_line(error)}. Embedded parts stay; choose {advice}"
    )
