import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertModel

from raybio.core.errors import ConfigError, RecordError
from raybio.methods.biostransformers.config import ArticleConfig
from raybio.methods.biostransformers.prepare import prepare_pairs
from raybio.methods.biostransformers.store import ArticleStore
from raybio.methods.biostransformers.system import build
from raybio.methods.biostransformers.zero_shot.evaluate import (
    evaluate_zero_shot,
    text_embedder,
    training_pmids,
)
from raybio.methods.biostransformers.zero_shot.report import report_markdown
from raybio.runtime.run.folder import RunFolder
from tests.encoders.tiny_text import save_tiny
from tests.methods.conformance_cases import tiny_config


def test_a_report_says_how_many_articles_of_a_task_a_run_was_trained_on(
    tiny_articles: ArticleStore, tmp_path: Path
) -> None:
    """PubMedQA questions may be training texts of a run, except for validation articles."""
    store = shutil.copytree(tiny_articles.path, tmp_path / "store")
    system, config = build(tiny_config("biostransformers"), store), tiny_config("biostransformers")
    run = RunFolder(tmp_path / "runs", "tiny")
    run.open("biostransformers", config, store, system.data_digest, ())
    model = str(system.export(run.export, {}))
    record = {"QUESTION": "word1a?", "CONTEXTS": ["word2a"], "LONG_ANSWER": "word3b"}
    queries = [*tiny_articles.pmid_N[:40].tolist(), 5000]
    (tmp_path / "ori_pqal.json").write_text(json.dumps({str(pmid): record for pmid in queries}))
    (result,) = evaluate_zero_shot([model], ["pubmedqa-contexts"], tmp_path)
    assert result.cuts == {}
    (short,) = evaluate_zero_shot([model], ["pubmedqa-contexts"], tmp_path, max_length=3)
    assert all("cut at 3 of" in remark for remark in short.cuts["tiny"])
    assert "tiny truncates texts: queries: " in report_markdown([short], {})
    with pytest.raises(ConfigError, match="--max-length: got 600, and .* reads at most 32 tokens"):
        evaluate_zero_shot([model], ["pubmedqa-contexts"], tmp_path, max_length=600)
    expected = int((~tiny_articles.is_validation_N[:40]).sum())
    assert 0 < expected < 40
    assert result.num_trained_on == {"tiny": expected}
    np.testing.assert_array_equal(
        training_pmids(model), tiny_articles.pmid_N[~tiny_articles.is_validation_N]
    )
    (store / "manifest.json").write_bytes(
        (store / "manifest.json").read_bytes() + b" "
    )  # prepared anew meanwhile
    assert "was prepared again since the training" in str(training_pmids(model))
    shutil.rmtree(store)
    (result,) = evaluate_zero_shot([model], ["pubmedqa-contexts"], tmp_path)
    reason = f"The training articles of tiny are unknown: {store}: does not exist"
    assert reason in report_markdown([result], {})
    assert training_pmids("some/model") is None


def export_run(folder: Path, store: Path, settings: dict[str, object]) -> str:
    config = tiny_config("biostransformers", **settings)
    system = build(config, store)
    run = RunFolder(folder.parent, folder.name)
    run.open("biostransformers", config, store, system.data_digest, ())
    return str(system.export(run.export, {}))


def test_training_articles_of_the_run_that_a_run_began_with_count_too(
    tiny_articles: ArticleStore, tmp_path: Path
) -> None:
    first = export_run(tmp_path / "runs" / "A", tiny_articles.path, {})
    table = tmp_path / "other.csv"
    table.write_text("pmid,title,abstract,terms\n7000001,word1a,word2a,Humans;Mice\n")
    other = prepare_pairs(tmp_path / "other", [table], ArticleConfig(validation_share=0)).path
    settings = {"encoder.source": first, "plan.global_batch_rows": 2}
    second = export_run(tmp_path / "runs" / "B", other, settings)
    of_first = tiny_articles.pmid_N[~tiny_articles.is_validation_N]
    np.testing.assert_array_equal(np.sort(training_pmids(second)), [*np.sort(of_first), 7000001])
    shutil.rmtree(tmp_path / "runs" / "A")
    assert training_pmids(second) == (
        f"{first}: the run began with it, and there is no run.json next to it."
    )


def test_training_texts_without_a_pmid_are_a_reason_and_no_zero(tmp_path: Path) -> None:
    table = tmp_path / "texts.csv"
    table.write_text("text,label\nword1a,first\nword2a,second\n")
    store = prepare_pairs(tmp_path / "store", [table], ArticleConfig(validation_share=0)).path
    model = export_run(tmp_path / "runs" / "A", store, {"plan.global_batch_rows": 2})
    assert training_pmids(model) == f"{store}: 2 of its training texts have no PMID."


def test_texts_are_cut_where_the_export_says_as_in_sentence_transformers(
    tiny_articles: ArticleStore, tmp_path: Path
) -> None:
    """The export has 32 positions; its folder is changed to say 16 tokens."""
    from sentence_transformers import SentenceTransformer

    system = build(tiny_config("biostransformers"), tiny_articles.path)
    model = system.export(tmp_path / "export", {})
    theirs = SentenceTransformer(str(model), device="cpu")
    assert theirs.max_seq_length == 32
    theirs.max_seq_length = 16
    theirs.save(str(tmp_path / "short"))
    words = " ".join(tiny_articles.texts("title", np.arange(20))).split()
    texts = [" ".join(words[:count]) for count in (3, 13, 14, 15, 20, 30)]
    expected = SentenceTransformer(str(tmp_path / "short"), device="cpu").encode(texts)
    embed = text_embedder(str(tmp_path / "short"), None)
    np.testing.assert_allclose(embed(texts).numpy(), expected, atol=1e-5)
    longer = text_embedder(str(tmp_path / "short"), 32)(texts).numpy()
    np.testing.assert_allclose(longer, text_embedder(str(model), None)(texts).numpy(), atol=1e-5)
    assert np.abs(longer - expected).max() > 1e-2


def test_a_model_of_nan_is_refused_with_its_name(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "diverged")
    model = BertModel.from_pretrained(folder)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    model.save_pretrained(folder)
    with pytest.raises(ConfigError, match=f"model '{folder}': its embeddings are not finite"):
        text_embedder(folder, 16)(["a text"])


@pytest.mark.parametrize("content", [b"", b'{"store": "st', bytes(100), b"\xff{}"])
def test_a_run_json_that_is_torn_is_an_error_and_no_unknown_training_set(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "run.json").write_bytes(content)
    (tmp_path / "ori_pqal.json").write_text(
        json.dumps({"1": {"QUESTION": "a?", "CONTEXTS": ["b"], "LONG_ANSWER": "c"}})
    )
    with pytest.raises(
        RecordError, match=r"run\.json: damaged, not JSON .*Give the run's whole command"
    ):
        evaluate_zero_shot([str(tmp_path / "export")], ["pubmedqa-contexts"], tmp_path)
