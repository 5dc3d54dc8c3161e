import math

import numpy as np
import torch

from raybio.methods.relation_graphs.encoders.character_bert.characters import word_characters
from raybio.methods.relation_graphs.encoders.character_bert.cnn import FILTERS as PUBLISHED_FILTERS
from raybio.methods.relation_graphs.encoders.character_bert.cnn import CharacterCNN
from tests.methods.relation_graphs.encoders.character_bert.tiny_characters import (
    FILTERS,
    WORDS,
    random_character_bert,
)


def test_a_word_is_its_bytes_between_two_marks_each_one_higher_than_in_the_paper():
    begin, end, none = 259, 260, 261
    letters = word_characters(["a", "", "aé", "\x00", "日"])
    assert letters.dtype == np.int16 and letters.shape == (5, 50)
    assert letters[0].tolist() == [begin, 98, end] + [none] * 47
    assert letters[1].tolist() == [begin, end] + [none] * 48
    assert letters[2].tolist() == [begin, 98, 0xC3 + 1, 0xA9 + 1, end] + [none] * 45
    assert letters[3].tolist() == [begin, 1, end] + [none] * 47
    assert letters[4].tolist() == [begin, 0xE6 + 1, 0x97 + 1, 0xA5 + 1, end] + [none] * 45


def test_a_word_of_60_characters_keeps_48_bytes_and_may_lose_half_a_letter():
    long, exact, half = word_characters(["x" * 60, "x" * 48, "x" * 47 + "é" * 13])
    assert long.tolist() == exact.tolist() == [259] + [121] * 48 + [260]
    assert half.tolist() == [259] + [121] * 47 + [0xC3 + 1, 260]


def test_special_words_have_characters_of_their_own_and_padding_is_zero():
    cls, sep, mask, pad, near = word_characters(["[CLS]", "[SEP]", "[MASK]", "[PAD]", "[cls]"])
    assert cls.tolist() == [259, 257, 260] + [261] * 47
    assert sep.tolist() == [259, 258, 260] + [261] * 47
    assert mask.tolist() == [259, 262, 260] + [261] * 47
    assert pad.tolist() == [0] * 50
    assert near.tolist()[:7] == [
        259,
        ord("[") + 1,
        ord("c") + 1,
        ord("l") + 1,
        ord("s") + 1,
        ord("]") + 1,
        260,
    ]


def test_half_a_surrogate_pair_is_left_out_and_no_words_have_no_rows():
    assert word_characters(["a\ud800b"]).tolist() == word_characters(["ab"]).tolist()
    assert word_characters([]).shape == (0, 50)


def word_by_loops(
    weights: dict[str, np.ndarray], characters: list[int], filters, num_highways: int
) -> list[float]:
    """El Boukkouri et al. 2020, 3.1, and Srivastava et al. 2015: one word, number by number."""
    embedded = [weights["_char_embedding_weights"][character] for character in characters]
    x = []
    for kind, (seen, number) in enumerate(filters):
        kernel, bias = weights[f"char_conv_{kind}.weight"], weights[f"char_conv_{kind}.bias"]
        for one in range(number):
            sums = [
                bias[one]
                + sum(
                    kernel[one][e][k] * embedded[start + k][e]
                    for k in range(seen)
                    for e in range(4)
                )
                for start in range(len(characters) - seen + 1)
            ]
            x.append(max(0.0, *sums))
    for layer in range(num_highways):
        matrix, bias = (
            weights[f"_highways._layers.{layer}.weight"],
            weights[f"_highways._layers.{layer}.bias"],
        )
        row = [bias[i] + sum(matrix[i][j] * x[j] for j in range(len(x))) for i in range(2 * len(x))]
        carried = [1 / (1 + math.exp(-gate)) for gate in row[len(x) :]]
        x = [
            g * old + (1 - g) * max(0.0, new)
            for g, old, new in zip(carried, x, row[: len(x)], strict=True)
        ]
    matrix, bias = weights["_projection.weight"], weights["_projection.bias"]
    return [bias[i] + sum(matrix[i][j] * x[j] for j in range(len(x))) for i in range(len(bias))]


def test_the_cnn_is_the_papers_number_by_number():
    torch.manual_seed(0)
    # In float32, such large weights round by more than 1e-5 on some processors.
    cnn = CharacterCNN(6, character_width=4, filters=FILTERS, num_highways=2).double()
    with torch.no_grad():
        for weight in cnn.parameters():
            weight.normal_()
    weights = {name: weight.numpy() for name, weight in cnn.state_dict().items()}
    letters = word_characters(["[CLS]", "[PAD]", *WORDS])
    with torch.no_grad():
        found = cnn(torch.from_numpy(letters).int().reshape(2, 4, 50)).reshape(8, 6)
    wanted = [word_by_loops(weights, row, FILTERS, 2) for row in letters.tolist()]
    torch.testing.assert_close(
        found, torch.tensor(wanted, dtype=torch.float64), rtol=1e-10, atol=1e-10
    )


def test_the_published_sizes_have_the_published_shapes_and_104_6_million_weights_with_the_pooler():
    with torch.device("meta"):
        encoder = random_character_bert(
            num_layers=12, width=768, ffn_width=3072, max_tokens=512, filters=PUBLISHED_FILTERS
        )
    cnn = encoder.model.get_input_embeddings()
    shapes = {name: tuple(weight.shape) for name, weight in cnn.named_parameters()}
    assert shapes["_char_embedding_weights"] == (263, 16)
    widths = [(kind + 1, number) for kind, number in enumerate((32, 32, 64, 128, 256, 512, 1024))]
    assert [shapes[f"char_conv_{kind}.weight"] for kind in range(7)] == [
        (number, 16, seen) for seen, number in widths
    ]
    assert shapes["_highways._layers.1.weight"] == (4096, 2048) and shapes[
        "_projection.weight"
    ] == (768, 2048)
    convolutions = sum(number * (16 * seen + 1) for seen, number in widths)
    num_weights = 263 * 16 + convolutions + 2 * 4096 * 2049 + 768 * 2049
    assert sum(weight.numel() for weight in cnn.parameters()) == num_weights == 18_562_416
    # BERT-base has 109,482,240 with a table of 30,522 words, and its pooler 590,592; the paper says
    # 104.6 M.
    total = sum(weight.numel() for weight in encoder.parameters())
    assert total + 590_592 == 109_482_240 - 30_522 * 768 + num_weights == 104_603_760
