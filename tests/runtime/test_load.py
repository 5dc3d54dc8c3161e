"""``raybio.load`` and the code in the cards: every kind of export, from a fresh process elsewhere."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import raybio
from raybio.core.errors import ConfigError, DataError
from raybio.methods import METHODS
from raybio.runtime.load import TrainedModel
from raybio.runtime.model_folders import model_of_run
from raybio.runtime.model_paths import local_model
from raybio.runtime.predict import read_predictor
from raybio.runtime.search.build import build_index
from tests.encoders.published import pickled_text
from tests.encoders.tiny_text import save_tiny
from tests.methods.conformance_cases import CASES, tiny_config
from tests.methods.published_encoders import PUBLISHED
from tests.runtime.search.test_index import write
from tests.runtime.search.test_queries import export
from tests.script_process import run_script

HAS_HEAD = ("finetune", "relation_finetune", "relation_graphs")

RUN_CARDS = r"""
import json, re, sys
from pathlib import Path
import numpy as np

found = {}
for name, folder in json.loads(sys.argv[1]).items():
    text = Path(folder, "README.md").read_text()
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
        lines = [line for line in code.splitlines() if line.strip()]
        assert len(lines) <= 10, (name, lines)
        names = {}
        assert '"."' in code
        exec(code.replace('"."', repr(folder)), names)
        if "embedding" in names:
            found[f"{name} {number}"] = np.asarray(names["embedding"])
        else:
            assert len(names["predictions"]) == len(names["inputs"]), name
            found[f"{name} predictions"] = np.ones(1)
np.savez("found.npz", **found)
"""


def assert_encode_is_the_code_of_the_cards(folders: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    script = tmp_path / "run_cards.py"
    script.write_text(RUN_CARDS)
    done = run_script(script, tmp_path / "elsewhere", json.dumps(folders))
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(tmp_path / "elsewhere" / "found.npz") as file:
        found = {name: file[name] for name in file.files}
    for name, folder in folders.items():
        model = raybio.load(folder)
        is_protein = (Path(folder) / "protein.json").is_file()
        texts = ["Asthma in early life.", "Hypersensitivity"]
        embedding_ND = model.encode(["MKTAYIAKQR", "MVLSPADK"] if is_protein else texts)
        assert embedding_ND.dtype == np.float32
        blocks = [block for block in found if block.rsplit(" ")[0] == name]
        assert (f"{name} predictions" in blocks) == (name in HAS_HEAD)
        model.load_weights()
        assert model.has_head == (name in HAS_HEAD)
        plain = [found[block] for block in blocks if not block.endswith("predictions")]
        # Texts by sentence_transformers and by transformers, proteins by transformers.
        assert len(plain) == (1 if is_protein else 2), blocks
        for expected_ND in plain:
            np.testing.assert_allclose(embedding_ND, expected_ND, rtol=1e-5, atol=1e-5)
        assert model.encode([]).shape == (0, embedding_ND.shape[1])
        with pytest.raises(DataError, match="got one str, want a list of"):
            model.encode("MKT")
        with pytest.raises(DataError, match="input 1: got int 3, want a string"):
            model.encode(["MKT", 3])  # type: ignore[list-item]
        if is_protein:
            with pytest.raises(DataError, match=r"input 0: got the letter '\*' in 'MK\*'"):
                model.encode(["MK*"])


def test_encode_is_what_the_code_of_each_card_computes_in_a_fresh_process_elsewhere(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pytest.importorskip("sentence_transformers")
    folders = {}
    for name, method in METHODS.items():
        store = request.getfixturevalue(CASES[name].store)
        folder = tmp_path / name / "export"
        method.build(tiny_config(name), store.path).export(folder, {})
        folders[name] = str(folder)
    assert_encode_is_the_code_of_the_cards(folders, tmp_path)


@pytest.mark.nightly
def test_encode_is_what_the_code_of_the_card_computes_for_each_architecture(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pytest.importorskip("sentence_transformers")
    folders = {}
    for layout, published in PUBLISHED.items():
        published.write(tmp_path / layout)
        store = request.getfixturevalue(published.store)
        config = published.config(str(tmp_path / layout))
        folder = tmp_path / f"{layout} run" / "export"
        METHODS[published.method].build(config, store.path).export(folder, {})
        folders[layout] = str(folder)
    # It embeds words, and has no tokenizer of texts.
    words = raybio.load(folders.pop("character_bert"))
    with pytest.raises(ConfigError, match="embeds words in their context .* want predict"):
        words.encode(["Asthma in early life."])
    assert_encode_is_the_code_of_the_cards(folders, tmp_path)


def test_inputs_may_be_a_generator(tmp_path: Path) -> None:
    for folder in (save_tiny(tmp_path / "texts", "bert"), export(tmp_path / "proteins", 0)):
        model = raybio.load(folder, "mean")
        inputs = ["MKTAYIAKQR", "MVLSPADK"]
        np.testing.assert_array_equal(model.encode(iter(inputs)), model.encode(inputs))


def test_the_first_inputs_that_are_cut_bring_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for folder, unit in (
        (export(tmp_path / "proteins", 0), "residues"),
        (save_tiny(tmp_path / "texts", "bert"), "tokens"),
    ):
        model = raybio.load(folder, "mean")
        assert len(model.encode([])) == 0
        model.encode(["MVLSPADK", "MKT"])
        assert caplog.messages == []
        for _ in range(2):
            model.encode(["M" * 1000 + " M" * 1000 if unit == "tokens" else "M" * 1000, "MVLSPADK"])
        (message,) = caplog.messages
        assert re.fullmatch(
            rf"{folder}: .*: 1 of 2 cut at \d+ of [\d,]+ {unit}; the ends are not read", message
        )
        caplog.clear()


def test_a_model_and_an_index_in_the_home_folder_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = export(tmp_path / "model", 0)
    assert local_model("~/model", "--model") == str(folder)
    assert raybio.load("~/model").folder == TrainedModel("~/model").folder == folder
    vectors = np.eye(4, dtype=np.float32)
    build_index(write(tmp_path / "vectors.parquet", vectors), tmp_path / "index")
    assert len(raybio.open_index("~/index")) == 4


def test_what_holds_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="raybio.load .*there is no nothing in"):
        raybio.load(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="holds no model .*want a finished run"):
        raybio.load(tmp_path)


def test_a_misspelt_name_of_a_run_brings_the_near_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_RUNS", str(tmp_path))
    with pytest.raises(ConfigError, match="--run frist: .* there are no runs in"):
        model_of_run(tmp_path, "frist")
    for name in ("first", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"--run frist: no run of that name in .* mean first\?"):
        model_of_run(tmp_path, "frist")
    with pytest.raises(ConfigError, match="--run xyz: .*; there are first, other "):
        model_of_run(tmp_path, "xyz")
    with pytest.raises(ConfigError, match=f"did you mean {tmp_path / 'first'}"):
        raybio.load("frist")
    with pytest.raises(ConfigError, match=f"no such folder; .* mean {tmp_path / 'first'}"):
        read_predictor("frist")


def test_the_name_of_a_run_in_a_job_brings_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAYBIO_RUNS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    working_dir = tmp_path / "runtime_resources" / "working_dir_files" / "x"
    working_dir.mkdir(parents=True)
    monkeypatch.chdir(working_dir)
    run = tmp_path / "raybio" / "runs" / "first"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"for the run of that name give {run}"):
        raybio.load("first")


def test_hidden_files_of_a_hub_or_a_file_manager_are_no_part_of_a_model(tmp_path: Path) -> None:
    model = raybio.load(export(tmp_path / "model", 0))
    digest = model.digest()
    (tmp_path / "model" / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    (tmp_path / "model" / ".cache").mkdir()
    (tmp_path / "model" / ".cache" / "state").write_text("1")
    # Other programs add weights to the cache of the hub.
    for name in ("pytorch_model.bin", "onnx/model.onnx", "openvino/openvino_model.xml"):
        (tmp_path / "model" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "model" / name).write_text("weights")
    assert raybio.load(tmp_path / "model").digest() == digest
    (tmp_path / "model" / "more.json").write_text("{}")
    assert raybio.load(tmp_path / "model").digest() != digest


def test_a_model_in_a_folder_named_like_one_of_other_weights_has_a_digest_of_its_files(
    tmp_path: Path,
) -> None:
    folder = export(tmp_path / "openvino", 0)
    digest = raybio.load(folder).digest()
    (folder / "more.json").write_text("{}")
    assert raybio.load(folder).digest() != digest


@pytest.mark.parametrize("is_pickled", [False, True])
def test_a_folder_without_stated_pooling_takes_that_of_the_call(
    tmp_path: Path, is_pickled: bool
) -> None:
    folder = tmp_path / "model"
    if is_pickled:
        pickled_text(folder, "bert")
    else:
        save_tiny(folder, "bert")
    texts = ["Asthma in early life.", "Hypersensitivity"]
    stateless = raybio.load(folder)
    assert not stateless.encodes
    assert "give the pooling, mean or cls" in stateless.why_not_encode
    by_pooling = {pooling: raybio.load(folder, pooling=pooling) for pooling in ("mean", "cls")}
    embeddings = {pooling: model.encode(texts) for pooling, model in by_pooling.items()}
    assert embeddings["mean"].shape == embeddings["cls"].shape == (2, 32)
    assert not np.allclose(embeddings["mean"], embeddings["cls"])
    assert repr(by_pooling["mean"]) == f"raybio.load({str(folder)!r}, pooling='mean')"


@pytest.mark.parametrize("pooling", ["max", "auto"])
def test_a_pooling_that_is_none_is_refused(tmp_path: Path, pooling: str) -> None:
    save_tiny(tmp_path / "model", "bert")
    model = raybio.load(tmp_path / "model", pooling=pooling)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"pooling: got '{pooling}', want cls or mean"):
        model.encode(["Asthma in early life."])


def test_a_pooling_that_contradicts_a_relation_models_folder_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    name = "relation_graphs"
    store = request.getfixturevalue(CASES[name].store)
    METHODS[name].build(tiny_config(name), store.path).export(tmp_path / "export", {})
    with pytest.raises(ConfigError, match="pooling cls: .* states mean"):
        raybio.load(tmp_path / "export", pooling="cls").encode(["Asthma in early life."])


def test_embeddings_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    folder = Path(save_tiny(tmp_path))
    (weights,) = folder.glob("*.safetensors")
    tensors = load_file(weights)
    name = next(name for name in tensors if name.endswith("LayerNorm.weight"))
    tensors[name][0] = float("nan")
    save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(ConfigError, match="its embeddings are not finite"):
        raybio.load(folder, pooling="mean").encode(["a b"])
