"""Folders in the layout of sentence-transformers: reading, writing and refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from raybio.core.errors import ConfigError
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.sentence_folder import (
    SentenceFolder,
    read_sentence_folder,
    write_sentence_files,
)
from raybio.encoders.text import build_text_encoder
from tests.encoders.hub import COMMIT, serve_hub
from tests.encoders.tiny_text import SENTENCES, embed, save_tiny
from tests.minilm import WHY_NOT, minilm_folder

STOCK = "sentence_transformers.models"
V6 = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}
OLD_POOLING = {
    "word_embedding_dimension": 32,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": True,
    "pooling_mode_max_tokens": False,
    "pooling_mode_mean_sqrt_len_tokens": False,
}


def write(folder: Path, files: dict) -> str:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return str(folder)


def modules(*kinds: str, transformer_path: str = "", package: str = STOCK) -> list[dict]:
    paths = [transformer_path, *[f"{number}_{kind}" for number, kind in enumerate(kinds) if number]]
    return [
        {
            "idx": number,
            "name": str(number),
            "path": path,
            "type": kind if "." in kind else f"{package}.{kind}",
        }
        for number, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]


def folder_with(folder: Path, *kinds: str, pooling: object = OLD_POOLING, **files: object) -> str:
    names = {name.replace("__", "/") + ".json": content for name, content in files.items()}
    return write(
        folder, {"modules.json": modules(*kinds), "1_Pooling/config.json": pooling} | names
    )


def read(source: str, **settings) -> SentenceFolder:
    found = read_sentence_folder(source, "main", **settings)
    assert found is not None
    return found


def test_a_plain_checkpoint_is_no_sentence_transformers_folder(tmp_path):
    assert read_sentence_folder(save_tiny(tmp_path), "main") is None
    encoder = build_text_encoder(TextEncoderConfig(source=str(tmp_path)), seed=0)
    assert (encoder.pooling, encoder.is_normalized) == ("mean", False)


def test_version_2_with_the_transformer_in_a_folder_of_its_own(tmp_path):
    save_tiny(tmp_path / "0_Transformer")
    files = {
        "modules.json": modules(
            "Transformer", "Pooling", "Normalize", transformer_path="0_Transformer"
        ),
        "0_Transformer/sentence_bert_config.json": {"max_seq_length": 9, "do_lower_case": True},
        "1_Pooling/config.json": OLD_POOLING,
    }
    source = write(tmp_path, files)
    assert read(source) == SentenceFolder("0_Transformer", "mean", True, 9, True)
    encoder = build_text_encoder(TextEncoderConfig(source=source, max_length="auto"), seed=0)
    assert (encoder.pooling, encoder.is_normalized, encoder.max_tokens) == ("mean", True, 9)


def test_version_6_with_its_new_names(tmp_path):
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    files = {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": V6["Transformer"]},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": V6["Pooling"]},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": V6["Normalize"]},
        ],
        "sentence_bert_config.json": {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": text},
            "module_output_name": "token_embeddings",
        },
        "1_Pooling/config.json": {
            "embedding_dimension": 32,
            "pooling_mode": "cls",
            "include_prompt": True,
        },
        "2_Normalize/config.json": {"module_input_name": "sentence_embedding"},
        "config_sentence_transformers.json": {
            "model_type": "SentenceTransformer",
            "prompts": {"query": "", "document": ""},
            "default_prompt_name": None,
        },
    }
    assert read(write(tmp_path, files)) == SentenceFolder("", "cls", True, None, False)


@pytest.mark.filterwarnings(
    "ignore:Importing from:DeprecationWarning"
)  # the place that versions 2 to 6 know
def test_what_the_installed_version_writes_is_read_and_gives_its_embeddings(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.models import Normalize, Pooling, Transformer

    source = save_tiny(tmp_path / "raw")
    for mode, is_normalized in (("mean", True), ("cls", False)):
        transformer = Transformer(source, max_seq_length=20)
        head = [Pooling(32, pooling_mode=mode)] + ([Normalize()] if is_normalized else [])
        model = library.SentenceTransformer(modules=[transformer, *head], device="cpu")
        model.save(str(tmp_path / mode), create_model_card=False)
        encoder = build_text_encoder(
            TextEncoderConfig(source=str(tmp_path / mode), max_length="auto"), seed=0
        )
        assert (encoder.pooling, encoder.is_normalized, encoder.max_tokens) == (
            mode,
            is_normalized,
            20,
        )
        expected = torch.from_numpy(model.encode(SENTENCES))
        torch.testing.assert_close(
            torch.from_numpy(embed(encoder, SENTENCES)), expected, rtol=1e-5, atol=1e-5
        )


def test_pooling_without_a_mode_is_the_mean_as_it_always_was(tmp_path):
    assert read(folder_with(tmp_path, "Transformer", "Pooling", pooling={})).pooling == "mean"
    assert (
        read(
            folder_with(tmp_path, "Transformer", "Pooling", pooling={"pooling_mode": ["cls"]})
        ).pooling
        == "cls"
    )


def test_the_length_may_stand_in_a_file_of_an_older_name(tmp_path):
    source = folder_with(
        tmp_path, "Transformer", "Pooling", sentence_roberta_config={"max_seq_length": 77}
    )
    assert read(source).max_tokens == 77


@pytest.mark.parametrize(
    ("kinds", "named"),
    [
        (["Transformer", "Pooling", "Dense"], "Dense is not supported"),
        (
            ["Transformer", "WeightedLayerPooling", "Pooling"],
            "WeightedLayerPooling is not supported",
        ),
        (["Transformer", "Pooling", "Dropout", "Normalize"], "Dropout is not supported"),
        (["Transformer", "Normalize", "Pooling"], "this order is not supported"),
        (["Transformer"], "this order is not supported"),
        (["Transformer", "evil.code.Pooling"], "evil.code.Pooling is not supported"),
        (["StaticEmbedding", "Normalize"], "begins with StaticEmbedding; want a Transformer"),
        ([], "begins with nothing; want a Transformer"),
    ],
)
def test_unsupported_modules_are_refused_by_name(kinds, named, tmp_path):
    source = folder_with(tmp_path, *kinds) if kinds else write(tmp_path, {"modules.json": []})
    with pytest.raises(ConfigError, match=f"{named}.*A training takes its transformer only"):
        read_sentence_folder(source, "main")


@pytest.mark.parametrize(
    ("pooling", "named"),
    [
        (
            OLD_POOLING | {"pooling_mode_max_tokens": True},
            r"Pooling is max \+ mean; want mean or cls",
        ),
        ({"pooling_mode_lasttoken": True}, "Pooling is lasttoken"),
        ({"pooling_mode": "weightedmean"}, "Pooling is weightedmean"),
        ({"pooling_mode": ["mean", "cls"]}, r"Pooling is mean \+ cls"),
    ],
)
def test_unsupported_poolings_are_refused_by_name(pooling, named, tmp_path):
    with pytest.raises(ConfigError, match=named):
        read(folder_with(tmp_path, "Transformer", "Pooling", pooling=pooling))


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (
            {"sentence_bert_config": {"transformer_task": "fill-mask"}},
            "transformer_task 'fill-mask'",
        ),
        ({"sentence_bert_config": {"model_args": {"rotary": 1}}}, "model_args {'rotary': 1}"),
        (
            {
                "sentence_bert_config": {
                    "modality_config": {"text": {"method": "get_text_features"}}
                }
            },
            "modality_config",
        ),
        (
            {"sentence_bert_config": {"max_seq_length": "128"}},
            "max_seq_length is '128', want a number above 0",
        ),
        (
            {"2_Normalize__config": {"module_input_name": "token_embeddings"}},
            "module_input_name 'token_embeddings'",
        ),
        (
            {"config_sentence_transformers": {"model_type": "SparseEncoder"}},
            "it is a SparseEncoder",
        ),
        (
            {
                "config_sentence_transformers": {
                    "prompts": {"q": "query: "},
                    "default_prompt_name": "q",
                }
            },
            "the prompt 'query: ' before every text",
        ),
    ],
)
def test_unsupported_settings_are_refused_by_name(files, named, tmp_path):
    with pytest.raises(ConfigError, match=named):
        read(folder_with(tmp_path, "Transformer", "Pooling", "Normalize", **files))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "modules.json is not valid JSON"),
        ('[{"path": "1_Pooling"}]', "without a type"),
        (
            '[{"type": "sentence_transformers.models.Transformer", "path": "../x"}]',
            "path '../x', want one inside",
        ),
        (
            '[{"type": "sentence_transformers.models.Transformer", "path": "/etc"}]',
            "path '/etc', want one inside",
        ),
        (
            '[{"type": "sentence_transformers.models.Transformer", "kwargs": {"a": 1}}]',
            "the arguments {'a': 1}",
        ),
    ],
)
def test_malformed_files_are_named(text, named, tmp_path):
    with pytest.raises(ConfigError, match=named):
        read_sentence_folder(write(tmp_path, {"modules.json": text}), "main")


def test_a_transformer_can_be_read_without_the_modules_after_it(tmp_path):
    save_tiny(tmp_path)
    source = folder_with(
        tmp_path, "Transformer", "Pooling", "Dense", sentence_bert_config={"max_seq_length": 11}
    )
    assert read(source, with_head=False) == SentenceFolder("", None, False, 11, False)
    config = TextEncoderConfig(source=source, pooling="cls", normalize=True, max_length="auto")
    encoder = build_text_encoder(config, seed=0)
    assert (encoder.pooling, encoder.is_normalized, encoder.max_tokens) == ("cls", True, 11)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("is_normalized", [False, True])
def test_a_written_folder_is_read_back(pooling, is_normalized, tmp_path):
    write_sentence_files(
        tmp_path, width=32, pooling=pooling, max_tokens=99, is_normalized=is_normalized
    )
    assert read(str(tmp_path)) == SentenceFolder("", pooling, is_normalized, 99, False)


@pytest.mark.skipif(minilm_folder() is None, reason=WHY_NOT)
def test_minilm_is_read_as_its_authors_intended():
    assert read(str(minilm_folder())) == SentenceFolder("", "mean", True, 256, False)


PROGRAM = """
import shutil, sys
from raybio.encoders.text import TextEncoderConfig, build_text_encoder
from raybio.core.errors import ConfigError
from raybio.core.digest import weights_digest
for place in sys.argv[1:]:
    if place.startswith("/"):
        shutil.rmtree(place)
        print("removed", place, file=sys.stderr, flush=True)
        continue
    source, revision = place.split("@")
    try:
        config = TextEncoderConfig(source=source, revision=revision, max_length="auto")
        encoder = build_text_encoder(config, seed=1)
        weights = weights_digest(encoder.model.state_dict().items())
        print(encoder.pooling, encoder.is_normalized, encoder.max_tokens, weights)
    except ConfigError as error:
        print("ConfigError:", error)
"""


def load(places: list[str], cache: Path, address: str | None) -> tuple[list[str], str]:
    own = {
        "HF_HOME": str(cache),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0" if address else "1",
    }
    if address:
        own["HF_ENDPOINT"] = address
    inherited = {
        key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")
    }
    command = [sys.executable, "-c", PROGRAM, *places]
    done = subprocess.run(command, env=inherited | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


@pytest.mark.nightly
def test_a_hub_id_works_like_a_folder_and_later_from_the_cache(tmp_path):
    save_tiny(tmp_path / "sentence" / "0_Transformer")
    files = {
        "modules.json": modules(
            "Transformer", "Pooling", "Normalize", transformer_path="0_Transformer"
        ),
        "0_Transformer/sentence_bert_config.json": {"max_seq_length": 9},
        "1_Pooling/config.json": OLD_POOLING
        | {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
    }
    source = write(tmp_path / "sentence", files)
    refused = folder_with(tmp_path / "dense", "Transformer", "Pooling", "Dense")
    repositories = {
        "tiny/sentence": Path(source),
        "tiny/plain": Path(save_tiny(tmp_path / "plain")),
    }
    places = ["tiny/sentence@main", f"tiny/sentence@{COMMIT}", "tiny/plain@main"]
    with serve_hub(repositories | {"tiny/dense": Path(refused)}) as address:
        lines, warnings = load(
            [*places, "tiny/dense@main", "tiny/other@main"], tmp_path / "cache", address
        )
    sentence, by_commit, plain, dense, unknown = lines
    assert "cannot be reached to look for" not in warnings
    encoder = build_text_encoder(TextEncoderConfig(source=source, max_length="auto"), seed=0)
    assert sentence.startswith("cls True 9 ")
    assert sentence == by_commit
    assert plain.startswith("mean False 64 ")
    assert sentence.split()[-1] == plain.split()[-1]
    assert (encoder.pooling, encoder.is_normalized, encoder.max_tokens) == ("cls", True, 9)
    assert "Dense is not supported" in dense
    assert unknown.startswith("ConfigError: encoder.source 'tiny/other' cannot be loaded: ")
    # Then forget that the hub has no such files.
    absent = str(tmp_path / "cache" / "hub" / "models--tiny--plain" / ".no_exist")
    places += ["tiny/other@main", absent, "tiny/plain@main"]
    lines, warnings = load(places, tmp_path / "cache", None)
    assert lines[:3] == [sentence, by_commit, plain]
    assert "HF_HUB_OFFLINE=1" in lines[3]
    assert lines[4:] == [plain]
    before, after = warnings.split(f"removed {absent}")
    assert "cannot be reached to look for" not in before
    assert (
        "the hub cannot be reached to look for modules.json of tiny/plain; taken as absent" in after
    )
