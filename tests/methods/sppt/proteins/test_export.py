import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForMaskedLM, AutoTokenizer

from raybio.core.batch import IGNORED_LABEL, PaddedTokens
from raybio.core.digest import weights_digest
from raybio.core.errors import ConfigError
from raybio.core.records import write_record
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.sentence_folder import read_sentence_folder
from raybio.encoders.text import check_text_encoder
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import build_protein_encoder
from raybio.methods.sppt.proteins.export import export_encoder
from raybio.methods.sppt.proteins.saved_settings import SETTINGS, read_protein_settings

SEQUENCES = ["MKTAYIAKQR", "MVLSPADK"]
CARD = {
    "name": "Tiny",
    "Data digest": "0123abcd",
    "Metrics": {"val/link_mrr": 0.25},
    "Configuration": {"encoder": {"width": 32}},
}
SENTENCE_TRANSFORMERS = f"""
from sentence_transformers import SentenceTransformer
embedding = SentenceTransformer('.', device='cpu').encode({SEQUENCES!r})
"""
BOTH = pytest.mark.parametrize("name", ["tape", "esm"])


def tiny_encoder(name: str, pooling: str = "cls"):
    config = EncoderConfig(
        vocabulary=name,
        num_layers=2,
        width=32,
        num_heads=4,
        ffn_width=48,
        max_positions=64,
        pooling=pooling,
    )
    return build_protein_encoder(config, seed=0)


def embed(encoder, sequences) -> np.ndarray:
    rows = [torch.from_numpy(encoder.vocabulary.encode(sequence)).long() for sequence in sequences]
    token_RL = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=encoder.pad_id)
    mask_RL = torch.arange(token_RL.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
    with torch.no_grad():
        return encoder(
            PaddedTokens(token_RL, mask_RL, torch.full_like(token_RL, IGNORED_LABEL))
        ).embedding_RD.numpy()


def run_without_raybio(runs: list[tuple], output) -> list[np.ndarray]:
    """Run each code in its folder, without raybio and the hub; return the ``embedding``s."""
    pairs = [(str(folder), code) for folder, code in runs]
    program = (
        "import os, sys, numpy\n"
        "sys.modules['raybio'] = None\n"
        f"for number, (folder, code) in enumerate({pairs}):\n"
        "    os.chdir(folder)\n"
        "    names = {}\n"
        "    exec(code, names)\n"
        f"    numpy.save({str(output)!r} + f'/{{number}}.npy', names['embedding'])\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-I", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [np.load(output / f"{number}.npy") for number in range(len(runs))]


@pytest.mark.nightly
def test_the_code_in_the_card_and_sentence_transformers_give_the_same_embeddings_without_raybio(
    tmp_path,
):
    encoders = [
        tiny_encoder(name, pooling) for name in ("tape", "esm") for pooling in ("cls", "mean")
    ]
    expected, runs = [], []
    for number, encoder in enumerate(encoders):
        folder = export_encoder(encoder, tmp_path / str(number), card=CARD)
        runs.append(
            (
                folder,
                re.search(
                    r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL
                ).group(1),
            )
        )
        expected.append(embed(encoder, SEQUENCES))
        runs.append((folder, SENTENCE_TRANSFORMERS))
        expected.append(expected[-1])
    for embedding_RD, expected_RD in zip(run_without_raybio(runs, tmp_path), expected, strict=True):
        np.testing.assert_allclose(embedding_RD, expected_RD, rtol=1e-5, atol=1e-5)


@BOTH
def test_an_export_is_a_source_for_the_next_run_with_all_its_weights(name, tmp_path):
    encoder = tiny_encoder(name)
    folder = export_encoder(encoder, tmp_path / "out", card=CARD)
    again = build_protein_encoder(EncoderConfig(source=str(folder), max_positions=64), seed=1)
    assert weights_digest(again.state_dict().items()) == weights_digest(
        encoder.state_dict().items()
    )
    model = AutoModelForMaskedLM.from_pretrained(folder)
    assert weights_digest(model.state_dict().items()) == weights_digest(
        encoder.model.state_dict().items()
    )


def test_the_card_states_data_metrics_and_configuration(tmp_path):
    folder = export_encoder(tiny_encoder("tape"), tmp_path / "out", card=CARD)
    text = (folder / "README.md").read_text()
    _, header, body = text.split("---\n", 2)
    assert yaml.safe_load(header)["library_name"] == "transformers"
    assert body.strip().startswith("# Tiny")
    blocks = dict(re.findall(r"## (\w+)\n\n```yaml\n(.*?)```", body, re.DOTALL))
    assert {title: yaml.safe_load(block) for title, block in blocks.items()} == {
        title: CARD[title] for title in ("Metrics", "Configuration")
    }
    assert "## Data digest\n\n0123abcd" in body


def test_the_folder_holds_no_pickle(tmp_path):
    folder = export_encoder(tiny_encoder("esm"), tmp_path / "out", card=CARD)
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "README.md",
    } <= names
    assert not [name for name in names if not name.endswith((".json", ".safetensors", ".md"))]
    assert json.loads((folder / "config.json").read_text())["model_type"] == "esm"


def test_a_failed_export_leaves_the_old_one_and_nothing_else(tmp_path):
    encoder = tiny_encoder("tape")
    folder = export_encoder(encoder, tmp_path / "out", card=CARD)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    with pytest.raises(yaml.representer.RepresenterError):
        export_encoder(encoder, folder, card={"Metrics": {"bad": object()}})
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_new_export_replaces_the_old_one(tmp_path):
    folder = export_encoder(tiny_encoder("tape", "mean"), tmp_path / "out", card=CARD)
    assert (folder / "1_WordWeights").exists()
    export_encoder(tiny_encoder("tape"), folder, card=CARD)
    assert not (folder / "1_WordWeights").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_an_export_states_pooling_and_length_and_every_reader_gets_them(pooling, tmp_path):
    folder = export_encoder(
        tiny_encoder("esm", pooling), tmp_path / "out", card=CARD, max_tokens=20
    )
    assert read_protein_settings(folder) == (pooling, 20)
    assert AutoTokenizer.from_pretrained(folder).model_max_length == 20
    assert "up to 20 tokens" in (folder / "README.md").read_text()
    if pooling == "cls":
        head = read_sentence_folder(str(folder), "main")
        assert (head.pooling, head.max_tokens, head.is_normalized) == (pooling, 20, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "protein.json: damaged, not JSON .* Export the run again"),
        ("[]", "got no format version, want version 1 of 'export settings'"),
        ('{"pooling": "mean"}', "lacks 'max_tokens'"),
        ('{"pooling": "max", "max_tokens": 20}', "got .*max.*, want pooling cls or mean"),
        ('{"pooling": "mean", "max_tokens": true}', "want .*max_tokens above 2"),
        (
            '{"pooling": "mean", "max_tokens": 20, "is_normalized": true}',
            "want .*is_normalized false",
        ),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(text, message, tmp_path):
    folder = export_encoder(tiny_encoder("tape"), tmp_path / "out", card=CARD)
    if text.endswith("}"):
        write_record(folder / SETTINGS, "export settings", json.loads(text))
    else:
        (folder / SETTINGS).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_protein_settings(folder)


def test_a_folder_of_others_says_its_pooling_in_their_layout_or_not_at_all(tmp_path):
    folder = export_encoder(tiny_encoder("tape"), tmp_path / "out", card=CARD)
    (folder / SETTINGS).unlink()
    assert read_protein_settings(folder) == ("cls", 64)
    flags = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    with pytest.raises(ConfigError, match="wants the mean over all tokens"):
        read_protein_settings(folder)
    (folder / "modules.json").unlink()
    assert read_protein_settings(folder) is None


def test_no_task_on_texts_takes_an_export_of_proteins(tmp_path):
    folder = export_encoder(tiny_encoder("tape", "mean"), tmp_path / "out", card=CARD)
    with pytest.raises(ConfigError, match="as in exports of protein encoders; want an encoder of"):
        check_text_encoder(TextEncoderConfig(source=str(folder)))
