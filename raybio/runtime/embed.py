"""Bulk embedding of proteins or texts by Ray Data: resumable, in bounded memory, one Parquet file in the end.

The input is cut into parts; a part that is embedded is committed as a file of its own. The same command again verifies
the parts that are there and embeds only those that are missing, damaged or of another model. The parts lie next to the
output, in a folder that all workers must see (``embed_parts``).

Shape letters: R sequences of a part, D embedding width.
"""

import hashlib
import json
import logging
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from transformers import AutoTokenizer

from raybio.core.batch import IGNORED_LABEL, TokenBatch
from raybio.core.errors import ConfigError, DataError
from raybio.core.files import check_writable_file
from raybio.encoders.checkpoints import load_pretrained
from raybio.encoders.config import Pooling, TextEncoderConfig
from raybio.encoders.input_lengths import MAX_COUNTED_TEXTS, InputLengths, token_lengths
from raybio.encoders.text import TextEncoder, build_text_encoder, text_reader
from raybio.encoders.text_checkpoint import SentenceFolder, read_sentence_folder
from raybio.encoders.tokenization import TokenizerSource, read_texts
from raybio.methods.mtb_mccl import encoder as relation_export
from raybio.methods.relation_graphs import encoder as word_export
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import (
    ProteinEncoder,
    build_protein_encoder,
    max_tokens_of,
    vocabulary_of,
)
from raybio.methods.sppt.proteins.formats import read_fasta
from raybio.methods.sppt.proteins.saved_settings import SETTINGS, read_protein_settings
from raybio.methods.sppt.proteins.vocabulary import vocabulary_of_tokenizer
from raybio.runtime.cluster.connection import connected
from raybio.runtime.embed_parts import VERSION, Parts, check_output, cut_of, join
from raybio.runtime.run.folder import RunFolder
from raybio.store.quarantine import Quarantine
from raybio.store.text_lines import read_text_lines
from raybio.training.collective import SingleProcess
from raybio.training.durable import file_sha256
from raybio.training.embed import embed_rows

MAX_TOKENS_AT_ONCE = 16_384


_CARD = "README.md"


@dataclass(frozen=True)
class Model:
    """An encoder's folder and how it embeds, as the folder itself says.

    Attributes:
        folder: as ``save_pretrained`` writes it.
        reads: what it was trained on.
        pooling: "cls" or "mean"; of proteins the mean over residues, of texts the mean over all tokens.
        max_tokens: tokens of an input, special ones included; longer ones are cut. None: the encoder's own limit.
        is_normalised: whether embeddings have length 1.
    """

    folder: str
    reads: Literal["proteins", "texts"]
    pooling: Pooling
    max_tokens: int | None
    is_normalised: bool

    @classmethod
    def of_run(cls, runs: Path, name: str) -> "Model":
        """Return the exported model of a finished run.

        Raises:
            ConfigError: if there is no such run, it has not finished, or its model embeds no whole inputs.
        """
        export = RunFolder(runs, name).export
        if not (export / "config.json").exists():
            raise ConfigError(
                f"--run {name}: {export} holds no model; want a finished run. Is --runs right?"
            )
        return cls.of_folder(export)

    @classmethod
    def of_folder(cls, folder: str | Path, pooling: Pooling | None = None) -> "Model":
        """Read how the encoder in a folder embeds.

        Args:
            folder: an ``export/``, or any folder that ``save_pretrained`` or sentence_transformers wrote.
            pooling: for a folder that does not say; None: it must say.

        Raises:
            ConfigError: if there is no encoder of whole inputs in it, it does not say how it pools and ``pooling`` is
                None, or it says something other than ``pooling``.
        """
        path = Path(folder)
        if not path.is_dir():
            raise ConfigError(
                f"{folder}: no such folder; want the export/ of a run, or a folder of save_pretrained"
            )
        for settings, unit in (
            (relation_export.SETTINGS, "pairs of entities"),
            (word_export.SETTINGS, "words"),
        ):
            if (path / settings).is_file():
                raise ConfigError(
                    f"{folder}: embeds {unit} in their context ({settings}); want an encoder of whole proteins or "
                    "texts, such as a run of sppt_protein, sppt_mag, biostransformers, contrastive_probe or finetune"
                )
        if not [*path.rglob("*.safetensors")]:
            raise ConfigError(
                f"{folder}: no safetensors file in it; want a folder that save_pretrained wrote"
            )
        if (path / SETTINGS).is_file() or _reads_residues(path):
            said = read_protein_settings(path)
            found = None if said is None else said.pooling
            max_tokens = (None if said is None else said.max_tokens) or _tokenizer_limit(path)
            return cls(
                str(path),
                "proteins",
                _settled(path, found, pooling),
                max_tokens,
                is_normalised=False,
            )
        head = read_sentence_folder(str(path), "main")
        found = None if head is None else head.pooling
        max_tokens = None if head is None else head.max_tokens
        is_normalised = head is not None and head.is_normalised
        return cls(str(path), "texts", _settled(path, found, pooling), max_tokens, is_normalised)

    def digest(self) -> str:
        """Return 64 hex digits that change with anything that changes an embedding."""
        folder = Path(self.folder)
        settings = {name: value for name, value in asdict(self).items() if name != "folder"}
        names = sorted(
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        )
        files = {name: _digest_of_file(folder / name) for name in names if name != _CARD}
        return _digest_of({"settings": settings, "files": files})

    def __str__(self) -> str:
        """Say what is done with an input, in a line."""
        what = "residues" if self.reads == "proteins" else "tokens"
        pooled = "[CLS] state" if self.pooling == "cls" else f"mean over {what}"
        length = (
            "the encoder's own limit" if self.max_tokens is None else f"{self.max_tokens:,} tokens"
        )
        scaled = "length 1" if self.is_normalised else "not normalised"
        return f"{self.folder} ({self.reads}): {pooled}, inputs cut to {length}, {scaled}"


def _reads_residues(folder: Path) -> bool:
    head: SentenceFolder | None = read_sentence_folder(str(folder), "main", with_head=False)
    tokenizer = load_pretrained(
        AutoTokenizer, str(folder), "main", subfolder=head.subfolder if head else ""
    )
    try:
        vocabulary = vocabulary_of_tokenizer(tokenizer)
    except ValueError:
        return False
    # A cased tokenizer of texts knows all capital letters too, and has words besides.
    return not any(len(token) > 1 and token.isalpha() for token in vocabulary.id_by_token)


def _tokenizer_limit(folder: Path) -> int | None:
    """Return the most tokens that the folder's tokenizer states; None if it states none."""
    length = load_pretrained(AutoTokenizer, str(folder), "main").model_max_length
    # transformers has 1e30 where nothing is stated.
    return int(length) if length < 1e9 else None


def _settled(folder: Path, found: Pooling | None, given: Pooling | None) -> Pooling:
    if found is None and given is None:
        raise ConfigError(
            f"{folder} does not say how its tokens are pooled; give --model {folder} and --pooling mean or cls"
        )
    if found is not None and given is not None and found != given:
        raise ConfigError(
            f"--pooling {given}: {folder} says {found}; leave the option out, or choose another folder"
        )
    pooling = found or given
    assert pooling is not None
    return pooling


@dataclass(frozen=True)
class EmbedSummary:
    """What was done: inputs in the output, parts embedded now and found finished, bad records left out.

    ``cut`` says in one line which inputs were cut; it is empty if none was.
    """

    num_rows: int
    num_parts: int
    num_parts_found: int
    quarantine: dict[str, Any]
    cut: str


def embed_file(
    model: Model,
    source: Path,
    out: Path,
    *,
    rows_per_part: int = 4096,
    workers: int = 1,
    cpus_per_worker: float | None = None,
    use_gpu: bool | None = None,
    strip_stop: bool = False,
    max_bad_share: float = 0.1,
    verbose: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> EmbedSummary:
    """Embed every good record of ``source`` into ``out``: columns ``key`` and ``embedding`` (D float32), in file order.

    Args:
        model: the encoder.
        source: FASTA for a model of proteins, ``text_lines`` for one of texts; plain or gzip.
        out: Parquet file.
        rows_per_part: inputs between two commits.
        workers: processes that embed.
        cpus_per_worker: logical CPUs of each; None: an equal share of what there is.
        use_gpu: whether workers have GPUs; None: if there are any.
        strip_stop: remove one ``*`` at a protein's end.
        max_bad_share: largest share of bad records.
        verbose: show Ray's own logs.
        say: called with what a reader of the result has to know.

    Raises:
        ConfigError: if the model cannot be loaded, or ``out`` not be written.
        DataError: if the input is missing, or not what the model reads.
        StoreError: if ``out`` comes from another model or input or is damaged, or its parts from another input.
    """
    check_writable_file(out)
    if strip_stop and model.reads == "texts":
        raise ConfigError(
            f"--strip-stop is for proteins, and {model.folder} reads texts; leave the option out"
        )
    model_digest = model.digest()
    origin = _digest_of(
        {
            "input": _digest_of_file(source),
            "reads": model.reads,
            "strip_stop": strip_stop,
            "version": VERSION,
        }
    )
    result = _digest_of({"origin": origin, "model": model_digest})
    if out.exists():
        return EmbedSummary(check_output(out, result), 0, 0, {}, cut_of(out))
    parts = Parts(out.with_name(out.name + ".parts"))
    quarantine = Quarantine(max_bad_share)
    tables = partial(_tables, model, source, quarantine, rows_per_part, strip_stop)
    cut_digest = _digest_of({"origin": origin, "rows_per_part": rows_per_part})
    kind = "protein" if model.reads == "proteins" else "text"
    manifest = _cut(parts, cut_digest, tables, kind, quarantine, say)
    inputs: list[str] = manifest["inputs"]
    missing = _missing(parts, inputs, model_digest, say)
    if missing:
        with connected(workers, cpus_per_worker, use_gpu=use_gpu, verbose=verbose) as resources:
            _embed_parts(model, parts.folder, missing, resources, verbose=verbose)
    cut = _input_lengths(model, parts, len(inputs)).remark
    num_rows = join(parts, inputs, out, origin=result, model_digest=model_digest, cut=cut)
    shutil.rmtree(parts.folder)
    return EmbedSummary(
        num_rows, len(inputs), len(inputs) - len(missing), manifest["quarantine"], cut
    )


def _cut(
    parts: Parts,
    origin: str,
    tables: Callable[[], Iterator[pa.Table]],
    kind: str,
    quarantine: Quarantine,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Cut the input into files, or verify those that are there; return their manifest."""
    manifest = parts.read_manifest(origin)
    if manifest is not None:
        damaged = parts.damaged_inputs(manifest["inputs"])
        if not damaged:
            return manifest
        say(f"{damaged[0]} is missing or damaged; cutting the input again")
    inputs = parts.cut(tables())
    quarantine.check(kind)
    if not inputs:
        raise DataError(f"no good {kind} in the input, want at least one: {quarantine.summary()}")
    return parts.finish_cut(origin, inputs, quarantine.summary())


def _missing(
    parts: Parts, inputs: list[str], model_digest: str, say: Callable[[str], None]
) -> list[int]:
    """Return the parts that have to be embedded; say which of those that are there cannot be used."""
    missing = []
    numbers_by_fault: defaultdict[str, list[int]] = defaultdict(list)
    for number, input_digest in enumerate(inputs):
        if not parts.output(number).exists():
            missing.append(number)
        elif fault := parts.fault(number, input_digest=input_digest, model_digest=model_digest):
            missing.append(number)
            numbers_by_fault[fault].append(number)
    for fault, numbers in numbers_by_fault.items():
        more = f" (and {len(numbers) - 1:,} more)" if len(numbers) > 1 else ""
        say(f"{parts.output(numbers[0])} {fault}{more}; embedding again")
    return missing


def _embed_parts(
    model: Model, parts: Path, missing: list[int], resources: Any, *, verbose: bool
) -> None:
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = verbose
    if not verbose:
        logging.getLogger("ray.data").setLevel(logging.WARNING)
    dataset = ray.data.from_arrow([pa.table({"part": [number]}) for number in missing]).map_batches(
        _EmbedPart,
        fn_constructor_args=(model, str(parts.absolute()), resources.threads_per_worker),
        batch_size=None,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=min(resources.num_workers, len(missing))),
        num_cpus=resources.cpus_per_worker,
        num_gpus=resources.gpus_per_worker or None,
    )
    for _ in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
        pass


class _EmbedPart:
    """A Ray Data actor: loads the model once, then turns input parts into output parts."""

    def __init__(self, model: Model, parts: str, threads: int | None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.parts = Parts(Path(parts))
        self.encoder = load_encoder(model).to("cuda" if torch.cuda.is_available() else "cpu")
        self.max_tokens = model.max_tokens
        # After loading: a folder that was overwritten since the start gives parts that the driver does not accept.
        self.model_digest = model.digest()

    def __call__(self, batch: pa.Table) -> pa.Table:
        for number in batch.column("part").to_pylist():
            table, input_digest = self.parts.read_input(number)
            embedding_RD = embed_inputs(
                self.encoder, table.column("content").to_pylist(), self.max_tokens
            )
            values = pa.array(embedding_RD.reshape(-1), pa.float32())
            column = pa.FixedSizeListArray.from_arrays(values, embedding_RD.shape[1])
            embedded = pa.table({"key": table.column("key"), "embedding": column})
            self.parts.write(
                number, embedded, input_digest=input_digest, model_digest=self.model_digest
            )
        return batch


def load_encoder(model: Model) -> ProteinEncoder | TextEncoder:
    """Load the encoder, in evaluation mode.

    Raises:
        ConfigError: if it cannot be loaded.
    """
    if model.reads == "texts":
        return build_text_encoder(_text_config(model), seed=0).eval()
    return build_protein_encoder(_protein_config(model), seed=0).eval()


def _text_config(model: Model) -> TextEncoderConfig:
    length = model.max_tokens or "auto"
    return TextEncoderConfig(
        source=model.folder, pooling=model.pooling, normalise=model.is_normalised, max_length=length
    )


def _protein_config(model: Model) -> EncoderConfig:
    config = EncoderConfig(source=model.folder, pooling=model.pooling)
    if model.max_tokens is None:
        return config
    # An encoder with rotary positions has no limit of its own.
    return config.model_copy(update={"max_positions": max(8, model.max_tokens)})


def _input_lengths(model: Model, parts: Parts, num_parts: int) -> InputLengths:
    """Count the inputs that are longer than what is read of them; of many texts, an even sample."""
    contents = (parts.read_input(number)[0].column("content") for number in range(num_parts))
    if model.reads == "proteins":
        config = _protein_config(model)
        readable = max_tokens_of(config)
        limit = (
            min(model.max_tokens or readable, readable)
            - vocabulary_of(config).num_special_per_sequence
        )
        length_N = np.concatenate([pc.binary_length(content).to_numpy() for content in contents])
        return InputLengths.of("sequences", "residues", length_N, limit, setting="input.max_length")
    reader = text_reader(_text_config(model), count_by_word={})
    tokenise = TokenizerSource.of(reader.tokenizer).tokenise
    most = max(1, MAX_COUNTED_TEXTS // num_parts)
    num_rows = 0
    lengths = []
    for content in contents:
        num_rows += len(content)
        sample = content.take(np.arange(0, len(content), -(-len(content) // most)))
        lengths.append(token_lengths([text.decode() for text in sample.to_pylist()], tokenise))
    length_N = np.concatenate(lengths)
    return InputLengths.of(
        "texts",
        "tokens",
        length_N,
        reader.max_tokens,
        setting="encoder.max_length",
        num_rows=num_rows,
    )


def embed_inputs(
    encoder: ProteinEncoder | TextEncoder, contents: list[bytes], max_tokens: int | None = None
) -> np.ndarray:
    """Return embeddings (R, D), float32.

    Args:
        encoder: from ``load_encoder``.
        contents: upper-case residue letters, or texts in UTF-8.
        max_tokens: tokens of each, special ones included; longer ones are cut. None: as many as the encoder reads.
    """
    length = min(max_tokens or encoder.max_tokens, encoder.max_tokens)
    read: Callable[[np.ndarray], TokenBatch]
    if isinstance(encoder, ProteinEncoder):
        read = partial(_read_proteins, encoder, contents, length)
    else:
        read = partial(_read_texts, TokenizerSource.of(encoder.tokenizer), contents, length)
    rows = np.arange(len(contents))
    return (
        embed_rows(encoder, read, rows, SingleProcess(), max_tokens=MAX_TOKENS_AT_ONCE)
        .cpu()
        .numpy()
    )


def _read_proteins(
    encoder: ProteinEncoder, sequences: list[bytes], length: int, row_M: np.ndarray
) -> TokenBatch:
    num_residues = length - encoder.vocabulary.num_special_per_sequence
    token_lists = [
        encoder.vocabulary.encode(sequences[row][:num_residues]).astype(np.int64) for row in row_M
    ]
    token_T = torch.from_numpy(np.concatenate(token_lists))
    indptr_M1 = torch.from_numpy(np.cumsum([0, *map(len, token_lists)]))
    return TokenBatch(token_T, indptr_M1, torch.full_like(token_T, IGNORED_LABEL))


def _read_texts(
    tokenizer: TokenizerSource, contents: list[bytes], length: int, row_M: np.ndarray
) -> TokenBatch:
    return read_texts(
        [contents[row].decode() for row in row_M], partial(tokenizer.tokenise, max_length=length)
    )


def _tables(
    model: Model, source: Path, quarantine: Quarantine, rows_per_part: int, strip_stop: bool
) -> Iterator[pa.Table]:
    """Yield key and content (bytes) of the good records, a part each."""
    if model.reads == "proteins":
        batches = read_fasta(source, quarantine, strip_stop=strip_stop)
    else:
        batches = read_text_lines(source, quarantine)
    schema = pa.schema([("key", pa.string()), ("content", pa.large_binary())])
    waiting: list[pa.Table] = []
    num_waiting = 0
    for batch in batches:
        content = batch.column("sequence" if model.reads == "proteins" else "text").cast(
            pa.large_binary()
        )
        waiting.append(pa.table([batch.column("key"), content], schema=schema))
        num_waiting += len(batch)
        while num_waiting >= rows_per_part:
            table = pa.concat_tables(waiting)
            yield table.slice(0, rows_per_part).combine_chunks()
            waiting, num_waiting = [table.slice(rows_per_part)], num_waiting - rows_per_part
    if num_waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def _digest_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _digest_of_file(path: Path) -> str:
    try:
        return file_sha256(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
