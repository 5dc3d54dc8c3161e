"""CharacterBERT: a BERT over whole words, embedded from characters (El Boukkouri et al., 2020).

The authors publish ``general_character_bert`` and ``medical_character_bert``
(helboukkouri/character-bert) as pickles, which are converted when they are first read. They are
uncased: give them lower-cased words.

Shape letters: R sentences, L padded length, D width, V words that were read, C characters of a
word, U different words of a batch.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertModel

from raybio.core.errors import ConfigError, DataError
from raybio.encoders.checkpoints import check_source
from raybio.encoders.lora import merged
from raybio.encoders.packed import set_attention
from raybio.encoders.transformer import seeded_weights
from raybio.methods.relation_graphs.encoders.character_bert.characters import (
    CLS_WORD,
    MASK_WORD,
    PAD_WORD,
    SEP_WORD,
    word_characters,
)
from raybio.methods.relation_graphs.encoders.character_bert.checkpoint import (
    check_weights,
    read_config,
    read_weights,
    write_checkpoint,
)
from raybio.methods.relation_graphs.encoders.character_bert.cnn import CharacterCNN

PAD_ID, CLS_ID, SEP_ID, MASK_ID, FIRST_WORD_ID = range(5)


_SPECIAL_WORDS = (PAD_WORD, CLS_WORD, SEP_WORD, MASK_WORD)


class CharacterBert(nn.Module):
    """A BERT over words. Its vocabulary is replaceable, since no weight belongs to a word.

    Attributes:
        config: sizes of BERT and of the character part.
        model: BERT without pooler, in which a ``CharacterCNN`` replaces the table of word
            embeddings; parameters are named as in the published checkpoints.
        character_VC: the characters of each token id: padding, [CLS], [SEP], [MASK], then the words
            that were read.
    """

    character_VC: Tensor

    def __init__(self, config: BertConfig):
        """Create a model with random weights and no words; ``read_config`` gives ``config``."""
        super().__init__()
        self.config = config
        self.model = BertModel(config, add_pooling_layer=False)
        set_attention(self.model)
        self.model.set_input_embeddings(
            CharacterCNN(
                config.hidden_size,
                character_width=config.character_embedding_dim,
                filters=config.character_cnn_filters,
                num_highways=config.num_highway_layers,
            )
        )
        # Not in checkpoints, since the words depend on the corpus.
        self.register_buffer(
            "character_VC", torch.from_numpy(word_characters(_SPECIAL_WORDS)), persistent=False
        )

    def read_words(self, words: Sequence[str]) -> None:
        """Replace the vocabulary; the token id of word w is w + FIRST_WORD_ID."""
        characters = torch.from_numpy(word_characters([*_SPECIAL_WORDS, *words]))
        self.character_VC = characters.to(self.character_VC.device)

    def forward(self, token_RL: Tensor, mask_RL: Tensor) -> Tensor:
        """Return the last hidden states (R, L, D) of sentences.

        Args:
            token_RL: token ids; the caller adds [CLS] and [SEP].
            mask_RL: True for tokens, False for padding.

        Raises:
            DataError: if a sentence is longer than the model has positions for, or a token id
                belongs to no word.
        """
        length = token_RL.shape[1]
        wanted = self.config.max_position_embeddings
        if length > wanted:
            raise DataError(
                f"a batch is {length} tokens long, [CLS] and [SEP] included; this encoder reads "
                f"{wanted}. Split or cut its sentences"
            )
        return self.model(
            inputs_embeds=self.embed_words(token_RL), attention_mask=mask_RL.long()
        ).last_hidden_state

    def embed_words(self, token_RL: Tensor) -> Tensor:
        """Return word vectors (R, L, D) without context; each distinct word is computed once.

        Raises:
            DataError: if a token id belongs to no word.
        """
        distinct_U, place_RL = torch.unique(token_RL, return_inverse=True)
        if int(distinct_U[-1]) >= len(self.character_VC):
            raise DataError(
                f"token id {int(distinct_U[-1])} is of no word; this encoder has read "
                f"{len(self.character_VC) - FIRST_WORD_ID} words, whose ids begin at "
                f"{FIRST_WORD_ID}. Call read_words"
            )
        word_UD = self.model.get_input_embeddings()(self.character_VC[distinct_U].int())
        # Not word_UD[place_RL], whose gradient is summed in a different order each time.
        return functional.embedding(place_RL, word_UD)


def build_character_bert(
    source: str,
    *,
    revision: str | None = None,
    dropout: float | None = None,
    num_layers_kept: int | None = None,
) -> CharacterBert:
    """Build a CharacterBERT on the CPU in float32, in training mode; keep torch's generators.

    Args:
        source: a folder with ``config.json`` and weights, or a hub id.
        revision: branch, tag or commit of a hub id; None: main.
        dropout: of states and attention; None: the checkpoint's own.
        num_layers_kept: number of the first layers that are kept; None: all.

    Raises:
        ConfigError: if the source cannot be found or reached, weights are missing or unexpected, or
            sizes do not fit together.
    """
    revision = revision or "main"
    check_source(source, revision)
    config = read_config(source, revision)
    available = config.num_hidden_layers
    _set(config, source, dropout, num_layers_kept)
    with seeded_weights(0):  # The checkpoint replaces every weight.
        encoder = _make(source, config)
    read_weights(encoder.model, source, revision, num_layers=available)
    return encoder.train()


def save_character_bert(encoder: CharacterBert, directory: str | Path) -> Path:
    """Write configuration and weights under the authors' names; an older export is replaced.

    LoRA adapters are merged into the weights. The words that were read and a pooler are not saved.

    Returns:
        ``directory``, which appears whole or not at all.
    """
    return write_checkpoint(merged(encoder.model), encoder.config, Path(directory))


def check_character_bert(
    source: str,
    *,
    revision: str | None = None,
    dropout: float | None = None,
    num_layers_kept: int | None = None,
) -> CharacterBert:
    """Return the same as ``build_character_bert``, but without memory for weights.

    Of the weights, only the headers are read.

    Raises:
        ConfigError: as ``build_character_bert``.
    """
    revision = revision or "main"
    check_source(source, revision)
    config = read_config(source, revision)
    available = config.num_hidden_layers
    _set(config, source, dropout, num_layers_kept)
    with torch.device("meta"):
        encoder = _make(source, config)
    check_weights(encoder.model, source, revision, num_layers=available)
    return encoder


def _set(
    config: BertConfig, source: str, dropout: float | None, num_layers_kept: int | None
) -> None:
    if dropout is not None:
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
    if num_layers_kept is not None:
        if not 1 <= num_layers_kept <= config.num_hidden_layers:
            raise ConfigError(
                f"encoder.num_layers_kept is {num_layers_kept}, and encoder.source {source!r} has "
                f"{config.num_hidden_layers} layers; want 1 to as many"
            )
        config.num_hidden_layers = num_layers_kept


def _make(source: str, config: BertConfig) -> CharacterBert:
    try:
        return CharacterBert(config)
    except (ValueError, TypeError, RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
    raise ConfigError(
        f"encoder.source {source!r}: its sizes make no CharacterBERT ({reason}); correct them"
    )
