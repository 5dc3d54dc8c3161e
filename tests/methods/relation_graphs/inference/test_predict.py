"""Entities and relations of new sentences are those of the final evaluation, in a fresh process."""

import gzip
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import raybio
from raybio.core.errors import ConfigError, DataError
from raybio.core.final_report import FinalReport
from raybio.methods import METHODS
from raybio.methods.relation_graphs.annotations.gold import read_gold
from raybio.methods.relation_graphs.config import Config
from raybio.methods.relation_graphs.inference.new_sentences import NewSentence
from raybio.methods.relation_graphs.scores import TaggedPairs, score_entities_relations
from raybio.methods.relation_graphs.store import WordStore
from raybio.runtime.predict import predict_file, read_predictor
from raybio.training.collective import SingleProcess
from raybio.training.loop import fit
from tests.methods.conformance_cases import tiny_config
from tests.methods.relation_graphs.test_word import characters
from tests.paths import ROOT
from tests.script_process import run_script


class Trained(NamedTuple):
    """A finished run: its export and its final evaluation."""

    folder: Path
    final: FinalReport


pytestmark = pytest.mark.first_tier("pieces")


@pytest.fixture(scope="module", params=["pieces", "characters"])
def trained(request, tiny_words: WordStore, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("words")
    store = shutil.copytree(tiny_words.path, folder / "store")
    changes = {"schedule.max_steps": 10, "evaluation.num_pair_neighbors": [1, 3]}
    if request.param == "characters":
        characters(folder / "source")
        changes["encoder.source"] = str(folder / "source")
        changes["encoder.max_length"] = 32
    config = tiny_config("relation_graphs", **changes)
    assert isinstance(config, Config)
    system = METHODS["relation_graphs"].build(config, store)
    list(fit(system, config))
    final = system.final_evaluate(system.model, SingleProcess())
    return Trained(system.export(folder / "export", {}), final)


def scores_of(store: WordStore, rows: list[dict]) -> dict[str, float]:
    """Score found entities and relations against the annotations of the test sentences."""
    test = store.fold_rows(1, "test")
    gold = read_gold(store, test)
    tag_W = np.zeros(len(gold.tag_W), dtype=np.int64)
    pairs = []
    for number, row in enumerate(test.tolist()):
        words = [store.words[word] for word in store.sentence(row)]
        sentence = NewSentence.of_words("", words, 1)
        first = int(gold.indptr_S1[number])
        for one in rows:
            if one["id"] != (store.orig_ids[row] or str(number + 1)):
                continue
            assert sentence.text[one["head_start"] : one["head_end"]] == one["head"]
            end = first + sentence.end_W.index(one["head_end"])
            if one["kind"] == "entity":
                kind = store.entity_types.index(one["type"])
                start = first + sentence.start_W.index(one["head_start"])
                tag_W[start : end + 1] = 2 + 2 * kind
                tag_W[start] = 1 + 2 * kind
            else:
                other = first + sentence.end_W.index(one["tail_end"])
                pairs.append((end, other, store.relation_names.index(one["type"])))
    pair_3P = np.array(pairs, dtype=np.int64).reshape(-1, 3).T
    return score_entities_relations(
        TaggedPairs(tag_W, *pair_3P),
        TaggedPairs(gold.tag_W, *gold.pairs),
        indptr_S1=gold.indptr_S1,
        num_types=len(store.entity_types),
        num_relations=len(store.relation_names) - 1,
    ).values


def test_what_is_found_in_test_sentences_has_the_scores_of_the_final_evaluation(
    trained: Trained, tiny_words: WordStore, tmp_path: Path
) -> None:
    source = tiny_words.path.parent / "test.json.gz"
    job = ROOT / "jobs" / "predict.py"
    arguments = [trained.folder, "--input", source, "--out", tmp_path / "found.jsonl"]
    done = run_script(job, tmp_path, *map(str, arguments))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert f"{len(rows):,} entities and relations for 24 inputs" in done.stdout
    assert {row["kind"] for row in rows} == {"entity", "relation"}
    found = scores_of(tiny_words, rows)
    expected = trained.final.scores["trained"]["test"]
    for name in ("ner_f1", "re_f1", "re_minus_f1", "re_minus_precision"):
        assert found[name] == pytest.approx(expected[name]["value"], abs=1e-6), name
    assert found["re_minus_f1"] > 0
    knn = trained.final.details["knn_settings"]["trained"]
    record = json.loads((trained.folder / "word_predictor.json").read_text())
    assert record["num_pair_neighbors"] == knn["num_pair_neighbors"]
    # Texts whose words are divided by blanks are the same sentences.
    sentences = json.loads(gzip.decompress(source.read_bytes()))
    texts = [" ".join(sentence["tokens"]) for sentence in sentences]
    in_memory = raybio.load(trained.folder).predict(texts)
    assert [row for rows in in_memory for row in rows] == [
        {name: value for name, value in row.items() if name != "id" and value is not None}
        for row in rows
    ]


def test_offsets_are_those_of_the_text_and_long_sentences_are_refused(
    trained: Trained, tmp_path: Path
) -> None:
    text = "  Drug0-induced,\trash (in 2 men)!"
    sentence = NewSentence.of_text("1", text, 1)
    assert [text[a:b] for a, b in zip(sentence.start_W, sentence.end_W, strict=True)] == [
        *sentence.words
    ]
    assert sentence.words[:4] == ("Drug0", "-", "induced", ",")
    model = raybio.load(trained.folder)
    for row in model.predict([text])[0]:
        assert text[row["head_start"] : row["head_end"]] == row["head"]
    with pytest.raises(DataError, match=r"input 1: got [0-9]+ tokens in 'a a .*at most .* divide"):
        model.predict(["a", "a " * 80])
    with pytest.raises(DataError, match="input 0: got no word in ' '"):
        model.predict([" "])
    if (trained.folder / "modules.json").is_file():
        assert model.encode([text]).shape == (1, 32)
    else:
        with pytest.raises(ConfigError, match="embeds words .* has no tokenizer of texts"):
            model.encode([text])
    lines = tmp_path / "lines.txt"
    lines.write_text("\n" + "a b\n" * 20 + "a " * 80 + "\n")
    table = tmp_path / "table.tsv"
    table.write_text("id\ttext\n" + "x\ta b\n" * 20 + "y\t" + "a " * 80 + "\n")
    for file in (lines, table):
        said: list[str] = []
        predict_file(read_predictor(trained.folder), [file], tmp_path / "x.tsv", say=said.append)
        (remark,) = [
            line for line in said if line.startswith("skipped: sentence of more than the ")
        ]
        assert f"{file.name}:22" in remark
    (tmp_path / "bad.json").write_text('[{"tokens": "a b"}, {"tokens": ["a"]}]')
    with pytest.raises(DataError, match="1 of 2 sentence records are bad .*not of SpERT's form"):
        predict_file(read_predictor(trained.folder), [tmp_path / "bad.json"], tmp_path / "y.tsv")
