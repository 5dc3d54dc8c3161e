"""Bulk embedding by Ray Data of inputs, or of words or pairs in them: resumable, in bounded memory.

The input is cut into parts; each embedded part is committed as a file. When the same command runs
again, it verifies the existing parts and embeds only those that are missing, damaged or of another
model. The parts lie next to the output (``embed_parts``), in a bucket or in a folder that all
workers must see. In the end they are joined to one Parquet file.

Shape letters: R inputs of a part, D embedding width.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from raybio.core.digest import digest_of
from raybio.core.errors import (
    ConfigError,
    DataError,
    StoreError,
)
from raybio.core.files import delete_leftovers
from raybio.core.location import BucketPath, Location, absolute
from raybio.runtime.cluster.connection import connected
from raybio.runtime.cluster.resources import check_resources
from raybio.runtime.embed_actors import DEFAULT_FORMAT, EmbeddingFormat, embed_parts
from raybio.runtime.embed_inputs import EmbeddingInputs, inputs_of
from raybio.runtime.embed_output import (
    check_output_path,
    is_folder_of_files,
    output_here,
)
from raybio.runtime.embed_parts import (
    VERSION,
    DamagedPartsError,
    PartError,
    Parts,
    check_output,
    check_shards,
    cut_of,
    held_alone,
    join,
    write_shards,
)
from raybio.runtime.run.precision import Plan, worker_processors
from raybio.runtime.spool.lease import Lease
from raybio.store.quarantine import Quarantine
from raybio.training.embedding_model import EmbeddingModel, InputEmbedder
from raybio.training.precision import (
    decide_precision,
)


@dataclass(frozen=True)
class EmbedSummary:
    """The result of a bulk embedding.

    Attributes:
        num_rows: rows of the output.
        num_parts: parts of the input; 0 if the output was already finished.
        num_parts_found: parts that were finished before.
        quarantine: the skipped records by reason.
        cut: a line about inputs that were cut; empty if none was.
    """

    num_rows: int
    num_parts: int
    num_parts_found: int
    quarantine: dict[str, Any]
    cut: str


def embed_file(
    model: InputEmbedder,
    source: Path,
    out: Location,
    *,
    model_in_bucket: BucketPath | None = None,
    rows_per_part: int | None = None,
    workers: int = 1,
    cpus_per_worker: float | None = None,
    field: str | None = None,
    strip_stop: bool = False,
    max_bad_share: float = 0.1,
    form: EmbeddingFormat = DEFAULT_FORMAT,
    verbose: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> EmbedSummary:
    """Embed every good record of ``source`` into ``out``.

    The output has columns ``key`` and ``embedding`` (D numbers of ``form.dtype``), in the order of
    the input, and others between them if an input has several rows; see ``embed_table`` of the
    model and ``embed_token_table``. An ``out`` without a suffix is a folder with a file a part.

    Args:
        model: the encoder.
        source: FASTA for a model of proteins, ``text_lines`` for one of texts or sentences, plain
            or gzip; documents for one of pairs; or the folder of a prepared store of proteins or
            texts.
        out: Parquet file, local or in a bucket; or a local folder.
        model_in_bucket: the folder in a bucket that ``model`` was fetched from: each machine
            fetches it; None: all machines see the model's own folder.
        rows_per_part: inputs between two commits; None: 4096, or 256 if an input has many rows.
        workers: processes that embed.
        cpus_per_worker: logical CPUs of each; None: an equal share of what there is.
        field: field of a store's rows, such as "abstract"; None: the first.
        strip_stop: remove one ``*`` at a protein's end.
        max_bad_share: maximum fraction of invalid records.
        form: precision and type of the output.
        verbose: show Ray's own logs.
        say: called with lines about precision, parts and progress.

    Raises:
        ClusterError: if another command works on ``out``.
        DiskError: if a worker's disk is full.
        ConfigError: if the model cannot be loaded or does not embed per token, ``out`` not be
            written, or a machine lacks the precision.
        DataError: if the input is missing, or not what the model reads.
        StorageError: if a bucket is missing, refuses or does not answer.
        StoreError: if ``out`` comes from another model or input or is damaged, or its parts from
            another input.
    """
    check_output_path(out)
    plan = partial(check_resources, workers, cpus_per_worker)
    _check_form(model, form, plan, verbose=verbose, say=say)
    if rows_per_part is None:
        per_token = InputEmbedder.rows_per_part
        rows_per_part = per_token if form.per == "token" else model.rows_per_part
    records = inputs_of(source, model, field=field, strip_stop=strip_stop)
    origin = {
        "input": records.digest(),
        "reads": model.reads,
        "strip_stop": strip_stop,
        "version": VERSION,
    }
    model_digest = model.digest()
    folder = out.parent / f"{out.name}.parts"
    with held_alone(folder) as lease:
        embedding = _Embedding(
            model=model,
            model_in_bucket=model_in_bucket,
            model_digest=model_digest,
            form=form,
            origin=digest_of(origin),
            out=out,
            rows_per_file=rows_per_part if is_folder_of_files(out) else None,
            parts=Parts(folder) if lease is None else Parts(folder, lease.check),
            lease=lease,
            workers=workers,
            cpus_per_worker=cpus_per_worker,
            verbose=verbose,
            say=say,
        )
        finished = embedding.finished()
        if finished is not None:
            # A command that was killed after writing its output left parts behind.
            embedding.parts.delete()
            return finished
        inputs = embedding.cut(records, rows_per_part, Quarantine(max_bad_share))
        num_rows, num_embedded = embedding.embed_and_join(inputs)
        embedding.parts.delete()
    num_parts = len(inputs.digests)
    num_found = num_parts - num_embedded
    return EmbedSummary(num_rows, num_parts, num_found, inputs.quarantine, inputs.cut)


def _check_form(
    model: InputEmbedder,
    form: EmbeddingFormat,
    plan: Plan,
    *,
    verbose: bool,
    say: Callable[[str], None],
) -> None:
    """Refuse a format that the model or a machine does not support; warn about the precision.

    Raises:
        ConfigError: naming the format.
    """
    if form.per == "token" and not isinstance(model, EmbeddingModel):
        raise ConfigError(f"--per token: {model.folder} embeds {model.row_noun}; leave it out")
    if form.precision == "fp32":
        return
    decision = decide_precision(form.precision, worker_processors(plan, verbose=verbose))
    if decision.warning:
        say(decision.warning)


@dataclass(frozen=True)
class _CutInput:
    """The parts of the input.

    Attributes:
        digests: sha256 of each part.
        quarantine: the skipped records by reason.
        cut: a line about the inputs that the model cuts.
    """

    digests: list[str]
    quarantine: dict[str, Any]
    cut: str


@dataclass(frozen=True, kw_only=True)
class _Embedding:
    """The state and the steps of a bulk embedding.

    Attributes:
        model: the encoder.
        model_in_bucket: see ``embed_file``.
        model_digest: digest of the model.
        form: format of the output.
        origin: digest of the input and of how it is read.
        out: the output.
        rows_per_file: inputs per file, if the output is a folder; None: it is one file.
        parts: the parts, next to the output.
        lease: lease of the parts, if they are in a bucket.
        workers: processes that embed.
        cpus_per_worker: CPUs of each worker.
        verbose: show Ray's own logs.
        say: called with warnings and the progress.
    """

    model: InputEmbedder
    model_in_bucket: BucketPath | None
    model_digest: str
    form: EmbeddingFormat
    origin: str
    out: Location
    rows_per_file: int | None
    parts: Parts
    lease: Lease | None
    workers: int
    cpus_per_worker: float | None
    verbose: bool
    say: Callable[[str], None]

    @property
    def part_digest(self) -> str:
        """Digest that identifies the model and format of the embeddings of a part."""
        return self.form.digest(self.model_digest)

    @property
    def output_digest(self) -> str:
        """Digest that identifies the output."""
        content: dict[str, Any] = {"origin": self.origin, "model": self.part_digest}
        if self.rows_per_file is not None:
            content["rows_per_file"] = self.rows_per_file
        return digest_of(content)

    def finished(self) -> EmbedSummary | None:
        """Return the summary of an output that an earlier command finished; None if there is none.

        Raises:
            StoreError: if it comes from another model or input or is damaged.
        """
        with output_here(self.out) as here:
            if not here.exists() or (here.is_dir() and not any(here.iterdir())):
                return None
            if self.rows_per_file is not None:
                num_rows = check_shards(here, self.output_digest)
            else:
                num_rows = check_output(here, self.output_digest, self.out)
            return EmbedSummary(num_rows, 0, 0, {}, cut_of(here))

    def cut(
        self, records: EmbeddingInputs, rows_per_part: int, quarantine: Quarantine
    ) -> _CutInput:
        """Cut the input into files, or verify existing ones.

        Raises:
            DataError: if there is no good record, or too many are invalid.
            StoreError: if parts come from another input, or are damaged as they are written.
        """
        parts = self.parts
        origin = digest_of({"origin": self.origin, "rows_per_part": rows_per_part})
        manifest = parts.read_manifest(origin)
        if manifest is not None:
            try:
                return self._cut_input(manifest)
            except PartError as error:
                self.say(f"{error}; cutting the input again")
        inputs = parts.cut(_tables(self.model, records, quarantine, rows_per_part))
        for kind in self.model.record_kinds:
            quarantine.check(kind)
        if not inputs:
            raise DataError(
                f"no good {self.model.record_kinds[0]} in the input, want at least one: "
                f"{quarantine.summary()}"
            )
        manifest = parts.finish_cut(origin, inputs, quarantine.summary())
        try:
            return self._cut_input(manifest)
        except PartError as error:
            raise StoreError(
                f"{error}, although it was just written. Give the same command again"
            ) from None

    def _cut_input(self, manifest: dict[str, Any]) -> _CutInput:
        """Return the parts of a manifest; raise PartError if one of them is damaged."""
        digests: list[str] = manifest["inputs"]
        cut = self.model.truncation_remark(self.parts.contents(digests), len(digests))
        return _CutInput(digests, manifest["quarantine"], cut)

    def embed_and_join(self, inputs: _CutInput) -> tuple[int, int]:
        """Embed the missing parts, and again parts that turn out to be damaged while joining.

        Returns:
            Rows of the output, and number of parts that were embedded.

        Raises:
            ClusterError: if another command has taken over the output.
            DamagedPartsError: if a part that was embedded here is damaged.
        """
        embedded: set[int] = set()
        missing = self._missing(inputs.digests)
        while True:
            if missing:
                self._embed(missing)
                embedded |= set(missing)
            try:
                return self._join(inputs), len(embedded)
            except DamagedPartsError as error:
                # Only parts of an earlier command may be damaged; they are verified while joining.
                if embedded & error.fault_by_part.keys():
                    raise
                missing = self._report_faulty(error.fault_by_part)

    def _missing(self, inputs: list[str]) -> list[int]:
        """Return the parts that have to be embedded, and report existing ones that are unusable."""
        embedded = self.parts.embedded()
        fault_by_part: dict[int, str] = {}
        for number in sorted(embedded & set(range(len(inputs)))):
            fault = self.parts.fault(
                number, input_digest=inputs[number], model_digest=self.part_digest
            )
            if fault is not None:
                fault_by_part[number] = fault
        absent = set(range(len(inputs))) - embedded
        return sorted(absent.union(self._report_faulty(fault_by_part)))

    def _report_faulty(self, fault_by_part: Mapping[int, str]) -> list[int]:
        """Return the parts that have faults, and report them."""
        numbers_by_fault: defaultdict[str, list[int]] = defaultdict(list)
        for number, fault in fault_by_part.items():
            numbers_by_fault[fault].append(number)
        for fault, numbers in numbers_by_fault.items():
            more = f" (and {len(numbers) - 1:,} more)" if len(numbers) > 1 else ""
            self.say(f"{self.parts.output(numbers[0])} {fault}{more}; embedding again")
        return list(fault_by_part)

    def _embed(self, missing: list[int]) -> None:
        """Embed parts by workers."""
        key = None if self.lease is None else self.lease.key
        folder = absolute(self.parts.folder)
        actor_arguments = (self.model, self.model_in_bucket, self.form, folder, key)
        with connected(self.workers, self.cpus_per_worker, verbose=self.verbose) as resources:
            embed_parts(actor_arguments, missing, resources, verbose=self.verbose, say=self.say)

    def _join(self, inputs: _CutInput) -> int:
        """Join the embedded parts to the output; return its number of rows.

        Raises:
            DamagedPartsError: if parts are damaged.
            ClusterError: if another command has taken over the output.
        """
        write = join if self.rows_per_file is None else write_shards
        with output_here(self.out) as here:
            delete_leftovers(here)
            num_rows = write(
                self.parts,
                inputs.digests,
                here,
                origin=self.output_digest,
                part_digest=self.part_digest,
                # Token states get another digest, since they cannot be compared with embeddings of
                # inputs.
                model_digest=self.model_digest
                if self.form.per == "input"
                else f"{self.form.per}-{self.model_digest}",
                cut=inputs.cut,
            )
            if self.lease is not None:
                self.lease.check()
        return num_rows


def _tables(
    model: InputEmbedder,
    inputs: EmbeddingInputs,
    quarantine: Quarantine,
    rows_per_part: int,
) -> Iterator[pa.Table]:
    """Yield key and content (bytes) of the good records, one table for each part."""
    schema = pa.schema([("key", pa.string()), ("content", pa.large_binary())])
    waiting: list[pa.Table] = []
    num_waiting = 0
    for batch in inputs.blocks(model, quarantine):
        waiting.append(pa.table(batch.columns, schema=schema))
        num_waiting += len(batch)
        while num_waiting >= rows_per_part:
            table = pa.concat_tables(waiting)
            yield table.slice(0, rows_per_part).combine_chunks()
            waiting = [table.slice(rows_per_part)]
            num_waiting -= rows_per_part
    if num_waiting:
        yield pa.concat_tables(waiting).combine_chunks()
