"""A trained encoder as an ONNX graph, with its tokenizer, for programs without torch.

Shape letters: R inputs, L padded length, D embedding width.
"""

import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from raybio.core.batch import IGNORED_LABEL, PaddedTokens
from raybio.core.errors import ConfigError
from raybio.core.files import atomic_folder, check_replaceable_folder
from raybio.core.interfaces import Encoder
from raybio.encoders.export import plain_tokenizer
from raybio.encoders.text import TextEncoder
from raybio.training.embedding_model import EmbeddingModel

GRAPH = "model.onnx"

MAX_DIFFERENCE = 1e-4
"""Largest accepted absolute difference between the numbers of an embedding."""

MAX_BYTES_IN_GRAPH = 1_500_000_000
"""Larger weights go into ``model.onnx.data``, since the file of a graph holds at most 2 GB."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")

_WRITTEN = (
    GRAPH,
    f"{GRAPH}.data",
    "README.md",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template.jinja",
)
"""Name patterns of the files that an export writes; folders with other files are not replaced."""

_MAX_ROWS = 65_536

_INPUTS = ["input_ids", "attention_mask"]
_OUTPUTS = ["sentence_embedding", "token_embeddings"]

_README = """# {name}

{description}.

`{graph}` reads `input_ids` and `attention_mask` (int64, R × L, any R, L from 2 to {max_tokens}). It
computes `sentence_embedding` (R × D, pooled and scaled as the encoder does) and `token_embeddings`
(R × L × D). No torch and no raybio are needed:

```python
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
tokenizer.enable_truncation({max_tokens}, direction="{cut}")
tokenizer.enable_padding(pad_id={pad_id})
batch = tokenizer.encode_batch({examples})
inputs = {{"input_ids": np.array([item.ids for item in batch])}}
inputs["attention_mask"] = np.array([item.attention_mask for item in batch])
(embedding,) = onnxruntime.InferenceSession("{graph}").run(["sentence_embedding"], inputs)
```
"""

_EXAMPLES = {
    "proteins": ["MKTAYIAKQR", "MVLSPADK"],
    "texts": ["Asthma in early life.", "Hypersensitivity"],
}


class _Graph(nn.Module):
    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        labels_RL = torch.full_like(input_ids, IGNORED_LABEL)
        encoded = self.encoder(PaddedTokens(input_ids, attention_mask.bool(), labels_RL))
        return encoded.embedding_RD, encoded.hidden_RLD


def export_onnx(model: EmbeddingModel, directory: str | Path) -> float:
    """Write a graph with free lengths, its tokenizer and a README; replace an older folder.

    The graph is run in onnxruntime and compared with the encoder before the folder appears.

    Args:
        model: an export of raybio.
        directory: the folder to write.

    Returns:
        The largest absolute difference of an embedding's numbers, on batches of several lengths.

    Raises:
        ConfigError: if the extra ``onnx`` is not installed, the folder cannot be written or holds
            other files, the model has no ``tokenizer.json``, or the graph's embeddings differ by
            more than ``MAX_DIFFERENCE``.
    """
    _check_installed()
    check_replaceable_folder(Path(directory), _WRITTEN, "--onnx")
    source = Path(model.folder)
    if not (source / _TOKENIZER_FILES[0]).is_file():
        raise ConfigError(
            f"raybio export: {source} has no {_TOKENIZER_FILES[0]}; want a finished run of raybio, "
            "or its export/"
        )
    encoder = model.load().cpu().eval()
    limit = encoder.max_tokens
    assert isinstance(limit, int)
    max_tokens = min(model.max_tokens or limit, limit)
    graph = _Graph(encoder).eval()
    with atomic_folder(Path(directory)) as folder:
        _write_graph(graph, folder / GRAPH, max_tokens)
        difference = _largest_difference(graph, folder / GRAPH, max_tokens)
        if not difference <= MAX_DIFFERENCE:
            raise ConfigError(
                f"raybio export: the graph's embeddings differ from the encoder's by "
                f"{difference:.2g}, want at most {MAX_DIFFERENCE:g}. Nothing was written. Please "
                f"report it, with the config.json of {source}"
            )
        cut = "right"
        if isinstance(encoder, TextEncoder):
            cut = encoder.tokenizer.truncation_side
            # The tokenizer files of some sentence encoders lack the lowercasing that the encoder
            # applies.
            plain_tokenizer(encoder).save_pretrained(folder)
        else:
            for name in _TOKENIZER_FILES:
                shutil.copyfile(source / name, folder / name)
        text = _README.format(
            name=f"{source.parent.name if source.name == 'export' else source.name}, ONNX",
            description=f"An encoder of {model.reads}: {str(model).rpartition(': ')[2]}",
            graph=GRAPH,
            max_tokens=max_tokens,
            cut=cut,
            pad_id=encoder.pad_id,
            examples=_EXAMPLES[model.reads],
        )
        (folder / "README.md").write_text(text, encoding="utf-8")
    return difference


def _check_installed() -> None:
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"raybio export: {error.name} is not installed. Install the extra: pip install "
            "'raybio[onnx]'"
        ) from None


def _write_graph(graph: _Graph, path: Path, max_tokens: int) -> None:
    rows = torch.export.Dim("rows", min=1, max=_MAX_ROWS)
    length = torch.export.Dim("length", min=2, max=max_tokens)
    shape = {0: rows, 1: length}
    num_bytes = sum(weight.numel() * weight.element_size() for weight in graph.parameters())
    with _quiet(), torch.no_grad():
        torch.onnx.export(
            graph,
            _batch(num_rows=3, length=max_tokens // 2 + 1),
            path,
            input_names=_INPUTS,
            output_names=_OUTPUTS,
            dynamic_shapes=(shape, shape),
            dynamo=True,
            external_data=num_bytes > MAX_BYTES_IN_GRAPH,
            verbose=False,
        )


def _largest_difference(graph: _Graph, path: Path, max_tokens: int) -> float:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    largest = 0.0
    for num_rows, length in ((1, 3), (5, max(3, max_tokens // 3)), (2, max_tokens)):
        batch = _batch(num_rows, length)
        with torch.no_grad():
            embedding_RD, _ = graph(*batch)
        inputs = {name: tensor.numpy() for name, tensor in zip(_INPUTS, batch, strict=True)}
        (found_RD,) = session.run(_OUTPUTS[:1], inputs)
        largest = float(np.maximum(largest, np.abs(embedding_RD.numpy() - found_RD).max()))
    return largest


def _batch(num_rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Return token ids and mask (R, L); each row but the first has half the length."""
    generator = torch.Generator().manual_seed(0)
    # All vocabularies have at least 20 tokens; any of them will do here.
    token_RL = torch.randint(0, 20, (num_rows, length), generator=generator)
    mask_RL = torch.ones_like(token_RL)
    mask_RL[1:, -(-length // 2) :] = 0
    return token_RL, mask_RL


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence messages of torch's exporter that users cannot act on."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
