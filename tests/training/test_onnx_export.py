"""ONNX graphs of all kinds of encoders, in onnxruntime."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import raybio
from raybio.cli.export import export
from raybio.core.errors import ConfigError
from raybio.runtime.model_folders import model_of_folder
from raybio.training import onnx_export
from raybio.training.onnx_export import export_onnx
from tests.encoders.test_export_folders import EXPORTS
from tests.encoders.tiny_text import tiny_cased_tokenizer, tiny_model


@pytest.mark.first_tier("esm")
@pytest.mark.parametrize(
    "kind", [kind for kind in EXPORTS if kind.split()[0] not in ("relation", "words")]
)
def test_the_code_of_an_onnx_folder_gives_the_embeddings_of_the_encoder(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    EXPORTS[kind](tmp_path / "export")
    assert export_onnx(model_of_folder(tmp_path / "export"), tmp_path / "onnx") <= 1e-4
    card = (tmp_path / "onnx" / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    monkeypatch.chdir(tmp_path / "onnx")
    # Others: a single input, and one that is cut.
    first = re.search(r"encode_batch\((\[.*?\])\)", code)
    examples = eval(first.group(1))
    for inputs in (examples, examples[:1], [examples[0] * 30, examples[1], examples[0]]):
        names: dict[str, np.ndarray] = {}
        exec(code.replace(first.group(1), repr(inputs)), names)
        expected_ND = raybio.load(tmp_path / "export").encode(inputs)
        np.testing.assert_allclose(names["embedding"], expected_ND, rtol=0, atol=1e-4)


def test_only_an_earlier_onnx_folder_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    EXPORTS["protein mean"](tmp_path / "export")
    model = model_of_folder(tmp_path / "export")
    before = sorted(tmp_path.rglob("*"))
    for folder in (tmp_path, tmp_path / "export"):
        with pytest.raises(ConfigError, match="--onnx .* would be replaced as a whole; want a new"):
            export_onnx(model, folder)
    assert sorted(tmp_path.rglob("*")) == before
    EXPORTS["roberta"](tmp_path / "roberta")
    # The second one has other files of its tokenizer.
    for each in ("export", "roberta"):
        export(str(tmp_path / each), tmp_path / "onnx")
    found = re.findall(r"model.onnx( replaced)?: embeddings", capsys.readouterr().out)
    assert found == ["", " replaced"]


@pytest.mark.nightly
def test_weights_beyond_the_limit_of_a_graph_are_a_file_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    EXPORTS["protein mean"](tmp_path / "export")
    monkeypatch.setattr(onnx_export, "MAX_BYTES_IN_GRAPH", 0)
    assert export_onnx(model_of_folder(tmp_path / "export"), tmp_path / "onnx") <= 1e-4
    assert (tmp_path / "onnx" / "model.onnx.data").is_file()
    onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx")  # where the folder lies now


def test_without_the_extra_the_message_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    EXPORTS["protein mean"](tmp_path / "export")
    model = model_of_folder(tmp_path / "export")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"onnxruntime is not installed.*raybio\[onnx\]"):
        export_onnx(model, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


@pytest.mark.nightly
def test_the_tokenizer_of_an_onnx_folder_lowercases_and_cuts_as_the_encoder_does(
    tmp_path: Path,
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    folder = tmp_path / "cased"
    cased = tiny_cased_tokenizer()
    tiny_model("bert", len(cased)).save_pretrained(folder)
    cased.save_pretrained(folder)
    settings = folder / "tokenizer_config.json"
    sided = json.loads(settings.read_text()) | {"truncation_side": "left"}
    settings.write_text(json.dumps(sided))
    module = "sentence_transformers.models"
    modules = [{"path": "", "type": f"{module}.Transformer"}]
    modules.append({"path": "1_Pooling", "type": f"{module}.Pooling"})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    export_onnx(model_of_folder(folder), tmp_path / "onnx")
    tokenizer = Tokenizer.from_file(str(tmp_path / "onnx" / "tokenizer.json"))
    assert tokenizer.encode("ASTHMA").ids == tokenizer.encode("asthma").ids
    assert ', direction="left")' in (tmp_path / "onnx" / "README.md").read_text()
