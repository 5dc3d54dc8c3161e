from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from raybio.core.errors import ConfigError
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.sentence_folder import write_sentence_files
from raybio.encoders.text import build_text_encoder
from raybio.methods.contrastive_probe.accuracy import chance_scores
from raybio.methods.contrastive_probe.config import ProbeConfig
from raybio.methods.contrastive_probe.probe import (
    probe_encoder,
    probe_models,
    truncation_remarks,
)
from raybio.methods.contrastive_probe.published import paper_prompts
from raybio.methods.contrastive_probe.report import (
    QuerySetResults,
    report_data,
    report_markdown,
)
from raybio.methods.contrastive_probe.report_tables import report_tables
from raybio.methods.contrastive_probe.text_embedder import TextEmbedder
from tests import oracles
from tests.encoders.tiny_text import embed, save_tiny
from tests.methods.contrastive_probe.small_benchmark import benchmark_of, random_benchmark

NAMES = sorted(
    [
        "Asthma",
        "asthma",
        "cohort",
        "illness",
        "life",
        "middle income",
        "risk factors",
        "tropical country",
    ]
)
QUERIES = [
    ("may_treat", "Asthma", ["risk factors", "life"]),
    ("may_treat", "life", ["illness"]),
    ("occurs_after", "cohort", ["tropical country", "asthma"]),
]


@pytest.fixture
def model(tmp_path: Path) -> str:
    return save_tiny(tmp_path / "tiny")


def probed_set(name, benchmark, results):
    return QuerySetResults(
        name, benchmark, results, "name", chance_scores(benchmark, ProbeConfig())
    )


def tiny_encoder(model: str):
    return build_text_encoder(TextEncoderConfig(source=model, pooling="cls", max_length=50), seed=0)


def test_a_model_is_probed_by_first_states_and_euclidean_distance(model):
    benchmark = benchmark_of(QUERIES, NAMES)
    messages = []
    (result,) = probe_models([model], {"full": benchmark}, ProbeConfig(), log=messages.append)[
        "full"
    ]
    encoder = tiny_encoder(model)
    queries = [
        text.replace("[Y]", "[MASK]") for text in ("Asthma may treat [Y] .", "life may treat [Y] .")
    ]
    queries.append("cohort occurs after [MASK] .")
    name_CD = np.concatenate([embed(encoder, [name]) for name in NAMES])
    expected = oracles.nearest(embed(encoder, queries), name_CD, 8)
    near_Q10 = np.full((3, 10), -1)
    near_Q10[:, :8] = expected
    np.testing.assert_array_equal(result.predicted_QK, near_Q10)
    assert result.label == "tiny"
    assert messages[1] == "probing tiny, cls pooling, full: 8 names, 3 queries"
    assert messages[2].startswith("tiny: acc@1 ")


def test_a_model_is_pooled_as_its_folder_says_by_default(model):
    benchmark = benchmark_of(QUERIES, NAMES)

    def predicted(pooling=None):
        messages = []
        (result,) = probe_models(
            [model], {"full": benchmark}, ProbeConfig(), pooling=pooling, log=messages.append
        )["full"]
        return messages[1].split(", ")[1], result.predicted_QK.tolist()

    plain = predicted()
    assert plain == predicted("cls")
    write_sentence_files(Path(model), width=32, pooling="mean", max_tokens=50)
    assert predicted() == predicted("mean")
    assert predicted()[0] == "mean pooling"
    assert predicted() != plain == predicted("cls")


def test_labels_of_models_with_different_poolings_include_them(model, tmp_path):
    other, benchmark = save_tiny(tmp_path / "other"), benchmark_of(QUERIES, NAMES)
    write_sentence_files(Path(other), width=32, pooling="mean", max_tokens=50)

    def labels(pooling=None):
        found = probe_models(
            [model, other], {"full": benchmark}, ProbeConfig(), layers=[1], pooling=pooling
        )["full"]
        return [result.label for result in found]

    assert labels() == ["tiny (cls), 1 layers", "other (mean), 1 layers"]
    assert labels("cls") == ["tiny, 1 layers", "other, 1 layers"]


@pytest.mark.parametrize("pooling", [None, "cls"])
def test_a_model_that_is_missing_or_too_shallow_is_refused_before_any_is_probed(
    model, tmp_path, pooling
):
    messages, benchmark = [], {"full": benchmark_of(QUERIES, NAMES)}
    with pytest.raises(ConfigError, match="no such folder"):
        probe_models(
            [model, str(tmp_path / "none")],
            benchmark,
            ProbeConfig(),
            pooling=pooling,
            log=messages.append,
        )
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="it has no weights"):
        probe_models(
            [model, str(tmp_path / "empty")],
            benchmark,
            ProbeConfig(),
            pooling=pooling,
            log=messages.append,
        )
    with pytest.raises(
        ConfigError, match="num_layers_kept is 5, and .* has 2 layers; want at most as many"
    ):
        probe_models(
            [model],
            benchmark,
            ProbeConfig(),
            layers=[1, 2, 5],
            pooling=pooling,
            log=messages.append,
        )
    assert messages == []


def test_texts_of_equal_tokens_have_equal_embeddings_and_long_ones_are_cut(model):
    encoder = tiny_encoder(model)
    texts = [
        "Asthma and risk factors",
        "COVID-19",
        "asthma  and risk FACTORS",
        "COVID-19 illness cohort",
        "",
    ]
    embedder = TextEmbedder(encoder)
    found = embedder(texts, 5)
    assert torch.equal(embedder(texts[::-1], 5), found.flip(0))
    assert torch.equal(found[0], found[2])
    np.testing.assert_allclose(found[4:].numpy(), embed(encoder, [""]), atol=1e-5)
    cut = embedder(["asthma and risk factors in the first years"], 6)
    np.testing.assert_allclose(cut.numpy(), embed(encoder, ["asthma and risk factors"]), atol=1e-5)


def test_an_encoder_without_a_mask_token_is_refused(model):
    encoder = tiny_encoder(model)
    encoder.tokenizer.mask_token = None
    with pytest.raises(ConfigError, match="has no mask token to stand for the answer"):
        probe_encoder(TextEmbedder(encoder), benchmark_of(QUERIES, NAMES), ProbeConfig())


@pytest.mark.skipif(
    "num_layers_kept" not in TextEncoderConfig.model_fields, reason="encoders cannot be cut yet"
)
def test_layers_are_probed_in_order_and_the_last_is_the_complete_model(model):
    benchmark = benchmark_of(QUERIES, NAMES)
    one, two = probe_models([model], {"full": benchmark}, ProbeConfig(), layers=[1, 2])["full"]
    (whole,) = probe_models([model], {"full": benchmark}, ProbeConfig())["full"]
    assert [one.label, two.label] == ["tiny, 1 layers", "tiny, 2 layers"]
    np.testing.assert_array_equal(two.predicted_QK, whole.predicted_QK)
    assert (one.predicted_QK != two.predicted_QK).any()


def test_agreement_of_two_wordings_is_reported_by_layer_and_selects_one(model):
    names = sorted({*NAMES, *(f"{name} {other}" for name in NAMES for other in NAMES)})
    benchmark = benchmark_of(
        [*(("may_treat", name, ["life"]) for name in NAMES), ("occurs_after", "life", ["life"])],
        names,
    )
    other = replace(
        benchmark,
        prompts=tuple(prompt.replace("may treat", "is for") for prompt in benchmark.prompts),
    )
    config = ProbeConfig()
    results = probe_models(
        [model], {"full": benchmark}, config, layers=[1, 2], reworded={"full": other}
    )["full"]
    for result in results:
        embedder = TextEmbedder(
            build_text_encoder(
                TextEncoderConfig(
                    source=model, pooling="cls", max_length=50, num_layers_kept=result.layer
                ),
                seed=0,
            )
        )
        other_QK = probe_encoder(embedder, other, config)
        name_CD = embedder(names, 25).numpy()
        near = oracles.nearest(name_CD[benchmark.head_Q], name_CD, len(names) // 10)
        expected = oracles.agreement(
            range(8), result.predicted_QK.tolist(), other_QK.tolist(), near
        )
        # Asked in one wording alone, or not at all: no agreement.
        assert result.agreement_R.tolist() == pytest.approx(
            [np.nan, expected, np.nan, np.nan], nan_ok=True
        )
    tables = report_tables(report_data([probed_set("full", benchmark, results)], {}))
    best = max(range(2), key=lambda layer: results[layer].agreement_R[1])
    row = tables["Label-free layer selection of tiny, full set: acc@10, macro"][1]
    assert row[:3] == [
        "agreement of wordings",
        str(best + 1),
        f"{100 * results[best].outcome.macro(10):.2f}",
    ]
    table = tables["Agreement of two wordings above chance, full set"]
    assert table[2] == ["may_treat", *(f"{100 * result.agreement_R[1]:.2f}" for result in results)]


def test_agreement_reads_no_gold_and_no_wordings_that_differ_in_case_only(model):
    benchmark = random_benchmark()

    def agreement(candidates, words):
        prompts = tuple(prompt.replace("has part", words) for prompt in benchmark.prompts)
        (result,) = probe_models(
            [model],
            {"full": benchmark},
            ProbeConfig(candidates=candidates),
            reworded={"full": replace(benchmark, prompts=prompts)},
        )["full"]
        return result.agreement_R

    among_all = agreement("all", "owns")
    assert np.isfinite(among_all).tolist() == [True, False, False, False]
    # The names that answer a relation's queries are gold.
    for candidates in ("relation", "tails"):
        np.testing.assert_array_equal(agreement(candidates, "owns"), among_all)
    assert np.isnan(agreement("all", "Has  Part")).all()


def test_the_report_of_a_real_probe_has_its_tables_and_the_published_rows(model, tmp_path):
    benchmark = benchmark_of(QUERIES, NAMES, relations=sorted(paper_prompts()))
    other = save_tiny(tmp_path / "other", "distilbert")
    found = probe_models([model, other], {"full": benchmark, "hard": benchmark}, ProbeConfig())
    sets = [probed_set(name, benchmark, results) for name, results in found.items()]
    data = report_data(sets, {"metric": "euclidean"}, num_samples=2)
    tables = report_tables(data)
    table = tables["Tables 4 and 10: acc@1 / acc@10"]
    assert [row[0] for row in table[:5]] == ["model", "chance", "tiny", "other", "BERT (published)"]
    assert table[4][1:] == ["0.94 / 4.96", "0.94 / 4.96", "0.74 / 2.31", "0.68 / 2.13"]
    micro = sets[0].results[0].outcome.micro(10)
    assert table[2][2].endswith(f"/ {100 * micro:.2f}")
    by_chance = 100 * sets[0].chance["micro_acc_at_10"]["value"]
    assert 0 < by_chance <= 100
    assert table[1][2].endswith(f"/ {by_chance:.2f}")
    assert [
        tables[name][1][0] for name in ("Table 3: approaches, full set", "Scores, full set")
    ] == ["chance"] * 2
    markdown = report_markdown(data)
    assert "| Contrastive-Probe (published) | PubMedBERT | 7.32 | 27.70 |" in markdown
    assert "Published rows are of the paper" in markdown
    assert "Answers: life; risk factors." in markdown or "Answers: illness." in markdown
    assert tables["By relation, full set, acc@1"][1][0] == min(paper_prompts())
    assert tables["By relation, full set, acc@1"][1][1:] == ["", ""]


def test_another_benchmark_than_medlama_has_no_published_rows(model):
    benchmark = benchmark_of(QUERIES, NAMES)
    results = probe_models([model], {"full": benchmark}, ProbeConfig())["full"]
    data = report_data([probed_set("full", benchmark, results)], {})
    assert "ublished" not in report_markdown(data)
    assert not [name for name in report_tables(data) if name.startswith("Table")]


def test_a_single_query_has_no_interval(model):
    benchmark = benchmark_of(QUERIES[:1], NAMES)
    results = probe_models([model], {"full": benchmark}, ProbeConfig())["full"]
    markdown = report_markdown(report_data([probed_set("full", benchmark, results)], {}))
    assert "nan" not in markdown


def test_truncated_names_and_queries_are_counted(model):
    long = "illness " * 40
    benchmark = benchmark_of(QUERIES, sorted([*NAMES, long]))
    ((name, remarks),) = truncation_remarks([model], {"full": benchmark}).items()
    assert name == "tiny"
    assert any(
        remark.startswith(f"names of full: 1 of {len(NAMES) + 1} cut at 25 of ")
        for remark in remarks
    )
    assert truncation_remarks([model], {"full": benchmark_of(QUERIES, NAMES)}) == {}


def test_a_biolama_source_is_shown_next_to_published_ones(model):
    benchmark = benchmark_of(QUERIES, NAMES)
    results = probe_models([model], {"CTD": benchmark}, ProbeConfig())["CTD"]
    data = report_data([probed_set("CTD", benchmark, results)], {})
    table = report_tables(data)["Table 7: BioLAMA, acc@1 / acc@5"]
    assert table[0] == ["approach", "model", "CTD"]
    assert table[1][:2] == ["chance", ""]
    assert ["Contrastive-Probe (published)", "PubMedBERT", "2.60 / 8.87"] in table


def test_texts_that_two_query_sets_share_are_embedded_once(model, monkeypatch):
    encoder, seen = tiny_encoder(model), []
    forward = type(encoder).forward
    monkeypatch.setattr(
        type(encoder),
        "forward",
        lambda self, tokens: seen.append(len(tokens.token_RL)) or forward(self, tokens),
    )
    embedder = TextEmbedder(encoder)
    whole = embedder(NAMES, 25)
    num_whole = sum(seen)
    part = embedder([*NAMES[:3], "something new"], 25)
    assert sum(seen) == num_whole + 1
    assert torch.equal(part[:3], whole[:3])


def test_a_model_of_nan_is_refused_with_its_name(model):
    diverged = tiny_encoder(model)
    with torch.no_grad():
        next(diverged.model.parameters()).fill_(torch.nan)
    diverged.model.save_pretrained(model)
    benchmark = benchmark_of(QUERIES, NAMES)
    with pytest.raises(ConfigError, match=f"model '{model}': its embeddings are not finite"):
        probe_models([model], {"full": benchmark}, ProbeConfig())
