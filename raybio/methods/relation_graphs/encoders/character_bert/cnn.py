"""CharacterBERT's word embeddings: character convolutions, highway layers and a projection.

El Boukkouri et al. 2020, after ELMo. Parameters are named as in the published checkpoints.

Shape letters: C characters of a word, E width of a character, F filters of all widths, D width of a
word.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from raybio.methods.relation_graphs.encoders.character_bert.characters import (
    NO_CHARACTER,
    NUM_CHARACTERS,
)

CHARACTER_WIDTH = 16


FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
"""(characters that a filter covers, number of such filters) in the published models."""


NUM_HIGHWAYS = 2


class CharacterCNN(nn.Module):
    """Embeds words: max over characters of ReLU(convolution), highway layers, a linear layer.

    Random weights: characters are drawn from N(0, 1), except the two kinds of padding, which start
    at 0. A highway layer initially passes most of its input through (gate bias 1). No row is
    frozen, as in the authors' code.
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        character_width: int,
        filters: Sequence[Sequence[int]],
        num_highways: int,
    ):
        """Create a CNN with random weights.

        Args:
            hidden_size: D.
            character_width: E.
            filters: (characters that a filter covers, number of such filters) of each kind; at most
                C characters.
            num_highways: number of highway layers.
        """
        super().__init__()
        num_filters = sum(number for _, number in filters)
        character_NE = torch.randn(NUM_CHARACTERS, character_width)
        character_NE[[0, NO_CHARACTER]] = 0.0
        self._char_embedding_weights = nn.Parameter(character_NE)
        self._convolution_names = [f"char_conv_{kind}" for kind in range(len(filters))]
        for name, (seen, number) in zip(self._convolution_names, filters, strict=True):
            self.add_module(name, nn.Conv1d(character_width, number, kernel_size=seen))
        self._highways = _Highways(num_filters, num_highways)
        self._projection = nn.Linear(num_filters, hidden_size)

    def forward(self, character_C: Tensor) -> Tensor:
        """Return the vectors (..., D) of words given by their character ids (..., C)."""
        shape = character_C.shape
        embedded_VCE = functional.embedding(
            character_C.reshape(-1, shape[-1]), self._char_embedding_weights
        )
        embedded_VEC = embedded_VCE.transpose(1, 2)
        # ReLU after the maximum is the maximum after ReLU, on a fiftieth of the numbers.
        pooled = [
            self.get_submodule(name)(embedded_VEC).max(-1).values.relu()
            for name in self._convolution_names
        ]
        word_VD: Tensor = self._projection(self._highways(torch.cat(pooled, dim=-1)))
        return word_VD.reshape(*shape[:-1], -1)


class _Highways(nn.Module):
    """Highway layers: g x + (1 - g) ReLU(A x + a), g = sigmoid(B x + b); [A; B] is one matrix."""

    def __init__(self, width: int, num_layers: int):
        super().__init__()
        layers = [nn.Linear(width, 2 * width) for _ in range(num_layers)]
        with torch.no_grad():
            for layer in layers:
                layer.bias[width:] = 1.0
        self._layers = nn.ModuleList(layers)

    def forward(self, x_VF: Tensor) -> Tensor:
        for layer in self._layers:
            changed_VF, gate_VF = layer(x_VF).chunk(2, dim=-1)
            x_VF = torch.lerp(changed_VF.relu(), x_VF, gate_VF.sigmoid())
        return x_VF
