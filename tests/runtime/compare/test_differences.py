"""Tables of stored results: intervals over seeds and units, differences, and rivals' remarks."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from raybio.cli.compare import _title_of_tests, compare
from raybio.core.config import override_all
from raybio.core.final_report import FinalReport, UnitScores
from raybio.core.records import read_record, write_record
from raybio.core.unit_counts import UnitCounts
from raybio.evaluation import unit_scores
from raybio.evaluation.unit_scores import stored_unit_scores, write_unit_scores
from raybio.methods import METHODS
from raybio.methods.sppt.table import LINK_RETRIEVAL
from raybio.ops.significance import RunGroup, hierarchical_mean, hierarchical_test, holm
from raybio.runtime.compare.compare import compare_runs
from raybio.runtime.compare.comparison_report import write_comparison
from raybio.runtime.compare.differences import differences
from raybio.runtime.compare.relations import Relation, relations_table, word_of
from raybio.runtime.compare.runs import GivenRun, Group, given_runs
from raybio.runtime.compare.table import (
    ResultTable,
    lines_for_terminal,
    write_joint_table,
    write_table,
)
from raybio.runtime.compare.variations import Variation, result_table, variants_of
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsLog
from raybio.runtime.run.result import Result
from raybio.runtime.run.spec import RunSpec

METHOD = METHODS["sppt_protein"]
LAYOUT = METHOD.table
MEASURES = tuple(LAYOUT.measures)
UNITS = np.arange(150)
HARDNESS = np.random.default_rng(0).uniform(0.1, 0.4, len(UNITS))
NOISE = np.random.default_rng(1).normal(0, 0.02, (20, len(UNITS)))


def store_run(
    folder: RunFolder,
    config: Any,
    values_by_stage: Mapping[str, np.ndarray],
    *,
    losses: Mapping[int, float] | None = None,
    facts: Mapping[str, Any] | None = None,
    without_units: tuple[str, ...] = (),
    splits: tuple[str, ...] = ("val",),
    sizes: Mapping[str, str] | None = None,
    method: str = "sppt_protein",
) -> Result:
    """What training leaves of a run; units of each stage have these values in all scores."""
    measures = tuple(METHODS[method].table.measures)
    folder.open(method, config, Path("store"), "d" * 64, ())
    log = MetricsLog(folder.metrics)
    for step, loss in (losses or {10: 1.0}).items():
        log.append(step, {"loss": loss, "epoch": step / 5})
    by_chance = {name: {"value": 0.05} for name in measures}
    scores: dict[str, Any] = {"chance": dict.fromkeys(splits, by_chance)}
    units = {}
    for stage, value_U in values_by_stage.items():
        value = float(value_U.mean())
        score = {"value": value, "low": value - 0.02, "high": value + 0.02}
        scores[stage] = dict.fromkeys(splits, dict.fromkeys(measures, score))
        if stage not in without_units:
            of_units = UnitScores(UNITS, dict.fromkeys(measures, value_U))
            units[stage] = dict.fromkeys(splits, of_units)
    reported = {"scores": scores, "sizes": dict(sizes or {})}
    content = {"status": "finished", "step": 10, "precision": "fp32", "final": reported}
    write_record(folder.result, "result", content | dict(facts or {}))
    write_unit_scores(folder.unit_scores, stored_unit_scores(units, METHODS[method].table))
    final = FinalReport.from_json({"scores": scores})
    return Result("finished", 10, "fp32", {}, final, {}, None, None, None, False, folder)


def stored_table(
    tmp_path: Path,
    num_seeds: int,
    *,
    weight: float = 0.3,
    rival: float = 0.1,
    better: float = 0.2,
    without_units: tuple[str, ...] = (),
) -> tuple[ResultTable, list[Result]]:
    """The table of λ = 0.5 (this run, better) and λ = 0.3, each with some seeds."""
    spec = RunSpec(
        method="sppt_protein",
        config=METHOD.demo,
        store=tmp_path / "store",
        name="first",
        runs=tmp_path / "runs",
    )
    variations = [Variation("objective.lambda_spml", (weight,))]
    if num_seeds > 1:
        variations.append(Variation("seed", tuple(range(num_seeds))))
    variants = variants_of(spec, variations)
    results = []
    for number, one in enumerate(variants):
        is_own = one.spec.config.objective.lambda_spml == METHOD.demo.objective.lambda_spml
        luck = 0.01 * one.spec.config.seed
        trained = HARDNESS + (better if is_own else 0.1) + luck + NOISE[number]
        values = {
            "degree": HARDNESS + rival + NOISE[18],
            "look-up": HARDNESS + NOISE[19],
            "initial": HARDNESS - 0.05 + luck,
            "trained": trained,
        }
        folder = RunFolder(tmp_path / "runs", one.spec.name)
        results.append(store_run(folder, one.spec.config, values, without_units=without_units))
    return result_table(variants, results), results


def words(table: ResultTable, *, row: str | None = None) -> dict[tuple[str, str], str]:
    """Return (row, measure) -> its relation to this run."""
    return {
        (each.row, each.measure): each.word
        for each in table.relations
        if row is None or each.row == row
    }


def group_of(value_SU: np.ndarray) -> RunGroup:
    return RunGroup([UnitCounts(value_U) for value_U in value_SU])


def units_of(results: list[Result], stage: str = "trained") -> np.ndarray:
    from raybio.evaluation.unit_scores import read_unit_scores

    return np.stack(
        [
            np.float32(read_unit_scores(one.folder.unit_scores)[stage]["val"].value_by_measure[m])
            for one in results
            for m in ("lrap",)
        ]
    ).astype(np.float64)


def test_tables_say_what_the_evaluation_left_out(tmp_path: Path) -> None:
    _, results = stored_table(tmp_path, 1)
    spec = RunSpec(
        method="sppt_protein",
        config=METHOD.demo,
        store=tmp_path / "store",
        name="first",
        runs=tmp_path / "runs",
    )
    variants = variants_of(spec, [Variation("objective.lambda_spml", (0.3,))])
    assert results[0].final.remarks == []
    sampled = [
        replace(result, final=replace(result.final, remarks=["5 of 9 nodes"])) for result in results
    ]
    assert "5 of 9 nodes" in result_table(variants, sampled).all_remarks
    mixed = result_table(variants, [results[0], sampled[1]]).all_remarks
    assert f"{variants[1].label}: 5 of 9 nodes" in mixed
    for result in sampled[1:]:
        record = read_record(result.folder.result, "result")
        record["final"] |= {"remarks": ["5 of 9 nodes"]}
        write_record(result.folder.result, "result", record)
    compared = compare_runs(given_runs(["*"], tmp_path / "runs"))
    (note,) = [note for note in compared.notes if note.startswith("Evaluation: ")]
    assert note.endswith(": 5 of 9 nodes")


def test_differences_from_rivals_of_a_sample_of_units_are_those_of_the_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, results = stored_table(tmp_path, 1)
    folder = results[0].folder
    record = dict(read_record(folder.result, "result"))
    scores = record["final"]["scores"]
    for score in scores["trained"]["val"].values():
        score["value"] = 0.75
    write_record(folder.result, "result", record)
    monkeypatch.setattr(unit_scores, "MAX_UNITS", len(UNITS))
    tests, _, _ = differences(Group("own", [GivenRun("own", folder)]), [], LAYOUT)
    rival = scores[tests[0].two]["val"][tests[0].measure]["value"]
    assert tests[0].difference == pytest.approx(0.75 - rival)
    assert tests[0].low < tests[0].difference < tests[0].high


def test_one_seed_has_intervals_over_units_and_no_p(tmp_path: Path) -> None:
    table, _ = stored_table(tmp_path, 1)
    assert table.legend.startswith("95 % bootstrap intervals over units, one seed; ")
    assert "one seed: no test over seeds" in table.all_remarks
    assert {(test.two, test.p, test.p_holm) for test in table.tests} == {
        ("lambda_spml = 0.3", None, None),
        ("degree", None, None),
    }
    assert all(0 < test.low < test.difference < test.high for test in table.tests)
    header, body = table.difference_cells("val")
    assert header == ["difference", *LAYOUT.measures.values()]
    assert [cells[0] for cells in body] == [
        "lambda_spml = 0.5 (this run) minus lambda_spml = 0.3",
        "lambda_spml = 0.5 (this run) minus degree",
    ]
    assert all("p =" not in cell for cells in body for cell in cells)
    assert set(words(table).values()) == {"below"}


def test_three_seeds_have_intervals_over_seeds_and_units_and_a_corrected_p(tmp_path: Path) -> None:
    table, results = stored_table(tmp_path, 3)
    own = units_of(results[:3])
    other = units_of(results[3:])
    assert table.rows["lambda_spml = 0.5, 3 runs"]["val"]["lrap"]["num_runs"] == 3
    score = table.rows["lambda_spml = 0.5, 3 runs"]["val"]["lrap"]
    expected = hierarchical_mean(group_of(own), np.random.default_rng(0)).difference
    assert (score["value"], score["low"], score["high"]) == pytest.approx(expected, abs=1e-6)
    assert score["deviation"] == pytest.approx(own.mean(axis=1).std(ddof=1))
    assert score["low"] < score["value"] - score["deviation"]
    assert "of repetitions over seeds and units; ± standard deviation" in table.legend
    tests = {test.two: test for test in table.tests if test.measure == "lrap"}
    assert list(tests) == ["lambda_spml = 0.3, 3 runs", "degree"]
    found = hierarchical_test(group_of(own), group_of(other), np.random.default_rng(0))
    against = tests["lambda_spml = 0.3, 3 runs"]
    interval = (against.difference, against.low, against.high)
    assert interval == pytest.approx(found.difference, abs=1e-6)
    assert against.p == pytest.approx(found.p, rel=1e-5)
    from_rival = group_of(own - units_of(results[:3], "degree"))
    rival = hierarchical_mean(from_rival, np.random.default_rng(0))
    assert tests["degree"].p == pytest.approx(rival.p, rel=1e-5)
    assert [test.p_holm for test in table.tests] == holm([test.p for test in table.tests]).tolist()
    assert len(table.tests) == 2 * len(MEASURES)
    assert not [line for line in table.all_remarks if "no test" in line]


def test_two_seeds_have_an_interval_over_units_only_and_no_p(tmp_path: Path) -> None:
    table, _ = stored_table(tmp_path, 2)
    assert "of two runs over units only" in table.legend
    assert "fewer than 3 seeds on a side: no test over seeds" in table.all_remarks
    assert all(test.p is None for test in table.tests)


@pytest.mark.parametrize("num_sets", [2, 3])
def test_runs_on_several_sentence_sets_are_draws_of_sets(tmp_path: Path, num_sets: int) -> None:
    method = METHODS["contrastive_probe"]
    first = RunSpec(
        method="contrastive_probe",
        config=override_all(method.demo, {"plan.sentence_set": 0}),
        store=tmp_path / "store",
        name="first",
        runs=tmp_path / "runs",
    )
    variations = [
        Variation("cloze.mask_ratio", (0.1,)),
        Variation("plan.sentence_set", tuple(range(num_sets))),
        Variation("seed", (0, 1, 2)),
    ]
    variants = variants_of(first, variations)
    results = []
    for number, one in enumerate(variants):
        config = one.spec.config
        level = 0.1 * config.plan.sentence_set + 0.2 * (config.cloze.mask_ratio == 0.1)
        # The encoder before training depends on the draw, and not on the mask ratio.
        draw = 3 * config.plan.sentence_set + config.seed
        values = {
            "initial": HARDNESS - 0.4 + 0.1 * config.plan.sentence_set + 0.01 * NOISE[draw],
            "character 2-4-grams": HARDNESS - 0.1,
            "trained": HARDNESS + level + 0.01 * NOISE[number],
        }
        folder = RunFolder(first.runs, one.spec.name)
        results.append(
            store_run(folder, config, values, splits=("full",), method="contrastive_probe")
        )
    table = result_table(variants, results)
    label = f"mask_ratio = {method.demo.cloze.mask_ratio}, {3 * num_sets} runs"
    score = table.rows[label]["full"]["acc_at_10"]
    assert (score["num_runs"], score["num_draws"]) == (3 * num_sets, num_sets)
    compared = compare_runs(given_runs(["*"], first.runs))
    assert compared.rows[f"first ({3 * num_sets} runs)"]["full"]["acc_at_10"] == score
    for rows in (table.rows, compared.rows):
        initial = rows[f"initial, {3 * num_sets} runs"]["full"]["acc_at_10"]
        assert (initial["num_runs"], initial["num_draws"]) == (3 * num_sets, num_sets)
    assert not compared.by_seed  # nine runs are three draws
    tests = [*table.tests, *compared.tests]
    if num_sets == 2:
        assert "of runs on two sets over units only" in table.legend
        assert "fewer than 3 sets on a side: no test over seeds" in table.all_remarks
        assert {test.p for test in tests} == {None}
        return
    assert "of runs on several sets over sets and units" in table.legend
    of_runs = np.stack([read_values(result) for result in results[:9]])
    of_sets = of_runs.reshape(3, 3, -1).mean(axis=1)
    expected = hierarchical_mean(group_of(of_sets), np.random.default_rng(0)).difference
    assert (score["value"], score["low"], score["high"]) == pytest.approx(expected)
    # Sets differ by 0.1, which says little of a difference of 0.2.
    assert min(test.p for test in tests if "gram" not in test.two) > 0.02
    rival = next(test for test in table.tests if test.two == "character 2-4-grams")
    against = hierarchical_mean(group_of(of_sets - HARDNESS + 0.1), np.random.default_rng(0))
    assert rival.p == pytest.approx(against.p, rel=1e-4)


def read_values(result: Result) -> np.ndarray:
    units = GivenRun("any", result.folder).unit_scores["full"]
    return units.value_by_measure["acc_at_10"]


def test_equal_settings_have_p_one(tmp_path: Path) -> None:
    table, results = stored_table(tmp_path, 3)
    for first, second in zip(results[:3], results[3:], strict=True):
        second.folder.unit_scores.write_bytes(first.folder.unit_scores.read_bytes())
    variants = variants_of(
        RunSpec(
            method="sppt_protein",
            config=METHOD.demo,
            store=tmp_path / "store",
            name="first",
            runs=tmp_path / "runs",
        ),
        [Variation("objective.lambda_spml", (0.3,)), Variation("seed", (0, 1, 2))],
    )
    same = [test for test in result_table(variants, results).tests if "lambda" in test.two]
    assert [(test.difference, test.p, test.p_holm) for test in same] == [(0, 1, 1)] * len(MEASURES)


@pytest.mark.parametrize(("rival", "word"), [(0.6, "higher"), (0.201, "unclear"), (0.1, "lower")])
@pytest.mark.parametrize("num_seeds", [1, 3])
def test_each_rival_has_a_row_that_says_whether_it_is_higher_than_the_model(
    tmp_path: Path, rival: float, word: str, num_seeds: int
) -> None:
    table, _ = stored_table(tmp_path, num_seeds, rival=rival)
    label = "lambda_spml = 0.5 (this run)" if num_seeds == 1 else "lambda_spml = 0.5, 3 runs"
    assert {each.model for each in table.relations} == {label}
    header, *rows = table.relations_table
    assert header == ["compared with this run", "held-out links"]
    cell_by_row = dict(rows)
    initial = "initial, 3 runs" if num_seeds == 3 else "initial"
    assert list(cell_by_row)[:4] == ["chance", "degree", "look-up", initial]
    assert len(rows) == 5
    # Rows of the terminal, which shows means of repetitions.
    assert cell_by_row.keys() <= table.of_settings.rows.keys()
    p_values = [test.p_holm for test in table.tests if test.two == "degree"]
    is_tested = num_seeds == 3 and word != "unclear"
    assert cell_by_row["degree"] == word + (f" (p ≤ {max(p_values):.2g})" if is_tested else "")
    assert cell_by_row["look-up"] == cell_by_row["chance"] == "lower"
    other = "lambda_spml = 0.3" + (", 3 runs" if num_seeds == 3 else "")
    assert cell_by_row[other].startswith("lower (p ≤ " if num_seeds == 3 else "lower")
    standing = {"higher": "lower than degree", "unclear": "not clearly different from degree"}
    verdict, of_runs = (line for line in table.all_remarks if line.startswith(f"{label}, "))
    assert f"held-out links (LRAP): {standing.get(word, 'higher than its 4 rivals')}" in verdict
    assert of_runs == f"{label}, held-out links (LRAP): higher than {other}"


def test_an_oracle_is_said_to_pass_and_is_not_what_is_tested(tmp_path: Path) -> None:
    _, results = stored_table(tmp_path, 1, rival=0.6)
    run = Group("first", [GivenRun("first", results[0].folder)])
    layout = replace(LAYOUT, oracles={"degree": "a baseline that sees gold answers"})
    tests, relations, _ = differences(run, [], layout)
    assert {each.word for each in relations if each.row == "degree"} == {"passes"}
    assert {test.two for test in tests} == {"look-up"}
    legend = ResultTable({"degree": run.runs[0].untrained["degree"]}, layout).legend
    assert legend.endswith("; degree: a baseline that sees gold answers")


def test_a_cell_names_the_scores_in_which_a_row_is_not_below() -> None:
    def relation(measure: str, word: str, p_holm: float | None = None) -> Relation:
        return Relation("degree", "run", "val", measure, word, p_holm)

    mixed = [
        relation("lrap", "below", 0.01),
        relation("ndcg", "reaches", 0.5),
        relation("average_precision", "passes", 0.02),
        relation("mrr", "passes", 0.04),
    ]
    assert relations_table(mixed, LAYOUT) == [
        ["compared with this run", "held-out links"],
        ["degree", "higher in AP, MRR (p ≤ 0.04); unclear in nDCG"],
    ]
    unknown = replace(mixed[0], word="cannot be compared")
    assert relations_table([unknown, mixed[1]], LAYOUT)[1][1] == (
        "unclear in nDCG; cannot be compared in LRAP"
    )
    other = replace(mixed[0], row="look-up", model="second", p_holm=None)
    assert relations_table([*mixed, other], LAYOUT) == [
        ["compared with each run", "run, held-out links", "second, held-out links"],
        ["degree", "higher in AP, MRR (p ≤ 0.04); unclear in nDCG", "–"],
        ["look-up", "–", "lower"],
    ]
    assert relations_table([], LAYOUT) == []
    assert [word_of(*ends) for ends in ((-2, -1), (-1, 0), (0, 1), (1, 2))] == [
        "passes",
        "reaches",
        "reaches",
        "below",
    ]


def test_a_line_says_where_a_model_stands_and_gives_the_advice_of_its_layout() -> None:
    layout = METHODS["finetune"].table
    oracle = replace(layout, oracles={"gold": "a baseline that sees gold answers"})
    relations = [
        Relation(row, model, split, "score", word, is_trained=row in ("run", "other"))
        for row, model, split, word in (
            ("ridge on frozen encoder", "run", "test", "passes"),
            ("kNN on TF-IDF", "run", "test", "passes"),
            ("gold", "run", "test", "passes"),
            ("other", "run", "test", "passes"),
            ("ridge on TF-IDF, 3 runs", "run", "test", "reaches"),
            ("nearest centroid", "run", "test", "below"),
            ("chance", "run", "test", "cannot be compared"),
            ("chance", "run", "dev", "passes"),
            ("run", "other", "test", "below"),
        )
    ]
    standing = (
        "run, test rows (score): lower than ridge on frozen encoder, kNN on TF-IDF; not clearly "
        "different from ridge on TF-IDF; not comparable with chance; higher than the other rival"
    )
    of_runs = "run, test rows (score): lower than other"
    advice = f". {layout.if_passed}"
    assert ResultTable({}, oracle, relations=relations).all_remarks == [standing + advice, of_runs]
    without = replace(oracle, if_passed="")
    assert ResultTable({}, without, relations=relations).all_remarks == [standing, of_runs]
    assert ResultTable({}, layout, relations=relations[5:]).all_remarks == [
        "run, test rows (score): not comparable with chance; higher than the other rival"
    ]
    assert ResultTable({}, layout, relations=relations[6:7]).all_remarks == []


@pytest.mark.parametrize(
    ("better", "words"), [(-0.2, "worse"), (-0.05, "not clearly better"), (0.2, None)]
)
@pytest.mark.parametrize("num_seeds", [1, 3])
def test_a_line_says_that_a_run_is_not_better_than_its_initial_encoder(
    tmp_path: Path, better: float, words: str | None, num_seeds: int
) -> None:
    table, _ = stored_table(tmp_path, num_seeds, better=better)
    lines = [line for line in table.all_remarks if "initial encoder" in line]
    label = table.relations[0].model
    expected = f"{label}: {words} than its initial encoder on held-out links (LRAP)"
    assert lines == ([] if words is None else [expected])


def test_a_line_is_of_the_first_measure_on_held_out_links() -> None:
    relations = [
        Relation(row, "run", split, measure, word)
        for row, split, measure, word in (
            ("chance", "val", "lrap", "below"),
            ("degree", "val", "lrap", "below"),
            ("degree", "val", "mrr", "passes"),
            ("degree", "train", "lrap", "passes"),
        )
    ]
    assert ResultTable({}, LINK_RETRIEVAL, relations=relations).all_remarks == [
        "run, held-out links (LRAP): higher than its 2 rivals"
    ]


def test_compared_runs_that_pass_a_run_are_no_rivals_to_use_instead(tmp_path: Path) -> None:
    table, _ = stored_table(tmp_path, 3, rival=-0.2, better=-0.1)
    passing = {row for (row, _), word in words(table).items() if word == "passes"}
    assert "lambda_spml = 0.3, 3 runs" in passing
    advised = replace(table, layout=replace(table.layout, if_passed="use the rival")).all_remarks
    with_advice = [remark for remark in advised if "use the rival" in remark]
    assert with_advice
    assert not [remark for remark in with_advice if "lambda_spml = 0.3" in remark]


def test_seeds_that_disagree_are_not_above_a_rival_which_one_of_them_is(tmp_path: Path) -> None:
    """Seeds add 0, 0.01 and 0.02: by the first seed alone the rival is higher, by all it is unclear."""
    alone, _ = stored_table(tmp_path / "one", 1, rival=0.21)
    assert set(words(alone, row="degree").values()) == {"passes"}
    several, _ = stored_table(tmp_path / "three", 3, rival=0.21)
    assert set(words(several, row="degree").values()) == {"reaches"}


def test_a_rival_without_unit_scores_is_compared_by_its_interval(tmp_path: Path) -> None:
    table, _ = stored_table(tmp_path / "a", 1, rival=0.22, without_units=("degree",))
    assert set(words(table, row="degree").values()) == {"reaches"}
    assert "degree" not in {test.two for test in table.tests}
    table, _ = stored_table(tmp_path / "b", 1, rival=0.6, without_units=("degree",))
    assert set(words(table, row="degree").values()) == {"passes"}


def test_the_deviation_of_runs_on_different_units_is_no_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deviations of 0.02 around 0.52 leave out 0.49, and the interval of the mean does not."""
    units = UNITS
    for seed in range(3):
        monkeypatch.setattr(sys.modules[__name__], "UNITS", units + 1000 * seed)
        values = {"degree": HARDNESS * 0 + 0.49, "trained": HARDNESS * 0 + 0.5 + 0.02 * seed}
        config = METHOD.config().model_copy(update={"seed": seed})
        store_run(RunFolder(tmp_path, f"run{seed}"), config, values)
    found = compare_runs(given_runs(["run*"], tmp_path))
    assert {each.word for each in found.relations if each.row == "degree"} == {"cannot be compared"}


def test_undefined_scores_have_no_interval_and_no_test(tmp_path: Path) -> None:
    undefined = HARDNESS * np.nan
    for number in range(2):
        folder = RunFolder(tmp_path, f"run{number}")
        values = {"degree": HARDNESS, "trained": undefined if number else HARDNESS}
        config = METHOD.config()
        store_run(folder, config.model_copy(update={"seed": number}), values)
    found = compare_runs(given_runs(["run*"], tmp_path))
    assert found.tests == []
    assert write_comparison(found, tmp_path / "out")
    assert "undefined" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_a_single_unit_says_nothing_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_seeds: int
) -> None:
    """Its bootstrap has no width: any rival with another value would be higher or lower."""
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "UNITS", UNITS[:1])
    monkeypatch.setattr(module, "HARDNESS", HARDNESS[:1])
    monkeypatch.setattr(module, "NOISE", NOISE[:, :1])
    table, _ = stored_table(tmp_path, num_seeds, rival=0.6)
    assert {(test.verdict, test.p) for test in table.tests} == {("cannot be compared", None)}
    cell_by_row = dict(table.relations_table[1:])
    assert cell_by_row["degree"] == cell_by_row["look-up"] == "cannot be compared"
    assert "Cannot be compared: there is no interval" in table.relations_caption
    assert "held-out links: 1 unit only, too few for a verdict" in table.all_remarks
    shown = [table.difference_cells("val"), table.cells("val"), table.relations_table]
    text = str([*shown, table.all_remarks])
    assert "nan" not in text and "no test over seeds" not in text


@pytest.mark.parametrize("num_units", [9, 10])
def test_fewer_than_ten_units_are_too_few_for_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_units: int
) -> None:
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "UNITS", UNITS[:num_units])
    monkeypatch.setattr(module, "HARDNESS", HARDNESS[:num_units])
    monkeypatch.setattr(module, "NOISE", NOISE[:, :num_units])
    table, _ = stored_table(tmp_path, 3, rival=0.6)
    compared = compare_runs(given_runs(["*"], tmp_path / "runs"))
    remark = "held-out links: 9 units only, too few for a verdict"
    is_few = num_units == 9
    for remarks in (table.all_remarks, compared.notes):
        assert (remark in remarks) == is_few
    for tests in (table.tests, compared.tests):
        assert ({test.verdict for test in tests} == {"too few units"}) == is_few
    for relations in (table.relations, compared.relations):
        assert ({each.word for each in relations} == {"cannot be compared"}) == is_few
    assert any("lower than degree" in line for line in table.all_remarks) != is_few
    # The scores themselves stay.
    assert "[" in table.difference_cells("val")[1][0][1]


def test_no_rival_is_below_a_model_without_a_score(tmp_path: Path) -> None:
    spec = RunSpec(
        method="sppt_protein",
        config=METHOD.demo,
        store=tmp_path / "store",
        name="first",
        runs=tmp_path / "runs",
    )
    variants = variants_of(spec, [])
    values = {"degree": HARDNESS, "trained": HARDNESS * np.nan}
    result = store_run(RunFolder(tmp_path / "runs", "first"), METHOD.demo, values)
    table = result_table(variants, [result])
    assert ["degree", "cannot be compared"] in table.relations_table


def test_the_files_of_a_table_and_the_terminal_have_differences_and_remarks(
    tmp_path: Path,
) -> None:
    table, results = stored_table(tmp_path, 3, rival=0.6)
    write_table(table, results[0].folder.path)
    text = (results[0].folder.path / "table.md").read_text()
    assert "Differences, held-out links (95 % bootstrap intervals of the paired differences" in text
    assert "p corrected for 8 tests (Holm)" in text
    assert "Rivals of lambda_spml = 0.5, 3 runs (higher: the rival or compared run in" in text
    assert "| degree | higher (p ≤ " in text
    assert "| lambda_spml = 0.5, seed = 1 |" in text
    content = read_record(results[0].folder.path / "table.json", "score table")
    assert content is not None
    assert len(content["differences"]) == len(table.tests)
    assert content["differences"][-1]["verdict"] == "degree is higher"
    assert content["remarks"] == table.all_remarks
    assert content["relations"][-1] == asdict(table.relations[-1])
    assert content["scores"].keys() == table.rows.keys()
    console = Console(width=80, record=True)
    for renderable in lines_for_terminal(table):
        console.print(renderable)
    shown = console.export_text()
    assert "…" not in shown
    assert shown.count("p = ") == len(table.tests)
    assert "│ degree " in shown and "│ higher (p ≤ " in shown
    # Means of settings; single seeds stand in the files.
    assert [label for label in table.of_settings.rows if "lambda" in label] == [
        "lambda_spml = 0.3, 3 runs",
        "lambda_spml = 0.5, 3 runs",
    ]
    assert "seed =" not in shown and "(this run)" not in shown
    assert "initial, 3" in shown and "initial" not in table.of_settings.rows


def test_the_joint_table_has_intervals_of_repetitions_and_the_remarks_of_each_part(
    tmp_path: Path,
) -> None:
    parts = {}
    for name, rival in (("a", 0.6), ("b", 0.1)):
        table, results = stored_table(tmp_path / name, 3, rival=rival)
        as_test = replace(
            table,
            rows={label: {"test": row["val"]} for label, row in table.rows.items()},
            layout=replace(LAYOUT, splits={"test": "held-out links"}),
            relations=[replace(relation, split="test") for relation in table.relations],
        )
        parts[name] = (as_test, results[0].folder)
    text = write_joint_table(parts).read_text()
    row = next(line for line in text.splitlines() if line.startswith("| lambda_spml = 0.5, 3"))
    assert row.count("[") == row.count("±") == 2 * len(MEASURES)
    assert "| compared with each run | a, held-out links | b, held-out links |" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| degree | higher")]
    assert row.endswith(" |") and "| lower (p ≤ " in row


def test_a_comparison_of_finished_runs_names_the_rival_of_each_group(tmp_path: Path) -> None:
    stored_table(tmp_path, 3, rival=0.15)
    found = compare_runs(given_runs(["first*"], tmp_path / "runs"))
    header, *rows = found.scores.relations_table
    assert header[1:] == [
        "first (3 runs), held-out links",
        "first.lambda_spml-0.3 (3 runs), held-out links",
    ]
    cells_by_row = {row: cells for row, *cells in rows}
    assert cells_by_row["degree"] == ["lower", "higher"]
    # Both groups are rows as well, with the p-value of their test.
    first = cells_by_row["first (3 runs)"]
    other = cells_by_row["first.lambda_spml-0.3 (3 runs)"]
    assert (first[0], other[1]) == ("–", "–")
    assert first[1].replace("higher", "lower") == other[0]
    assert other[0].startswith("lower (p ≤ ")
    write_comparison(found, tmp_path / "out")
    report = (tmp_path / "out" / "report.md").read_text()
    assert "| degree | lower | higher |" in report
    # The mean of the initial encoders, whose weights depend on the seed, and that of each setting.
    assert list(found.scores.of_settings.rows)[-3:] == [
        "initial, 3 runs",
        "first (3 runs)",
        "first.lambda_spml-0.3 (3 runs)",
    ]
    for label in ("initial, 3 runs", "first.seed-1", "first (3 runs)"):
        assert f"| {label} | " in report
    shown = read_record(tmp_path / "out" / "report.json", "comparison")
    assert shown["relations"] == [asdict(each) for each in found.relations]


def test_the_terminal_shows_means_and_what_is_tested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    stored_table(tmp_path, 3, rival=0.15)
    compare(["first*"], out=tmp_path / "out", runs=tmp_path / "runs")
    shown = capsys.readouterr().out
    # No terminal: nothing is folded.
    assert "│ first.lambda_spml-0.3 (3 runs) │" in shown
    title = "Tests of each two rows, in LRAP, nDCG, AP, MRR on held-out links"
    assert title in " ".join(shown.split())
    scores = shown[shown.index("Link retrieval, held-out links") :]
    assert "first.seed-1" not in scores
    assert scores.count("│ degree ") == 2
    assert "│ lower" in scores and "│ higher" in scores
    # A narrow terminal: nothing is cut, and the table of rivals is there.
    monkeypatch.setenv("COLUMNS", "80")
    compare(["first*"], out=tmp_path / "out", runs=tmp_path / "runs")
    narrow = capsys.readouterr().out
    assert "…" not in narrow and "Rivals of each run" in narrow
    assert max(map(len, narrow[narrow.index("Rivals of") :].splitlines()[:20])) <= 80


def test_tests_that_are_not_shown_or_not_made_are_named(tmp_path: Path) -> None:
    for number in range(5):
        folder = RunFolder(tmp_path, f"run{number}")
        config = override_all(METHOD.config(), {"objective.lambda_spml": number / 10})
        store_run(folder, config, {"trained": HARDNESS + NOISE[number]}, splits=("val", "c3"))
    found = compare_runs(given_runs(["run*"], tmp_path))
    assert len(found.tests) == 10 * len(MEASURES)
    title = _title_of_tests(found)
    assert "shown: the first 12 of 40, the others are in the report" in title
    assert "not tested, since they are parts of these: held-out links, no end seen (C3)" in title
    write_comparison(found, tmp_path / "out")
    report = (tmp_path / "out" / "report.md").read_text()
    assert "Not tested: held-out links, no end seen (C3). These repeat or refine" in report


def test_links_without_a_twin_are_tested_and_held_out_links_count_most(tmp_path: Path) -> None:
    for number in range(2):
        folder = RunFolder(tmp_path, f"run{number}")
        config = override_all(METHOD.config(), {"objective.lambda_spml": number / 10})
        trained = {"trained": HARDNESS + NOISE[number]}
        store_run(folder, config, trained, splits=("val", "no_twins", "c1"))
    found = compare_runs(given_runs(["run*"], tmp_path))
    assert {test.split for test in found.tests} == {"val", "no_twins"}
    assert LAYOUT.compared[-1] == "val"


def test_a_tested_initial_encoder_is_named_as_its_row(tmp_path: Path) -> None:
    # Without unit scores of rivals, it is the only untrained model that can be tested.
    table, _ = stored_table(tmp_path, 3, without_units=("degree", "look-up"))
    (row,) = {test.two for test in table.tests if "lambda" not in test.two}
    assert row == "initial, 3 runs"
    assert row in table.of_settings.rows
    p_values = [test.p_holm for test in table.tests if test.two == row]
    assert dict(table.relations_table[1:])[row] == f"lower (p ≤ {max(p_values):.2g})"


def test_titles_say_how_many_links_a_split_has(tmp_path: Path) -> None:
    sizes = {"val": "371 links of 600 nodes", "c3": "14 links of 25 nodes"}
    for name in ("a", "b"):
        config = override_all(METHOD.config(), {"objective.lambda_spml": 0.1 + (name == "b") / 10})
        store_run(
            RunFolder(tmp_path, name),
            config,
            {"trained": HARDNESS},
            splits=("val", "c3"),
            sizes=sizes,
        )
    found = compare_runs(given_runs(["*"], tmp_path))
    assert found.scores.title("c3").endswith("no end seen (C3): 14 links of 25 nodes")
    # A run with another number: nothing is said of both.
    store_run(
        RunFolder(tmp_path, "c"),
        METHOD.config(),
        {"trained": HARDNESS},
        splits=("val", "c3"),
        sizes=sizes | {"c3": "9 links of 17 nodes"},
    )
    found = compare_runs(given_runs(["*"], tmp_path))
    assert found.scores.title("c3").endswith("no end seen (C3)")
    assert found.scores.title("val").endswith("371 links of 600 nodes")


def test_the_same_training_under_two_names_is_named_and_leaves_the_seeds_grouped(
    tmp_path: Path,
) -> None:
    for name, seed in (("a", 0), ("a-again", 0), ("b", 1), ("c", 2)):
        config = override_all(METHOD.config(), {"seed": seed})
        store_run(RunFolder(tmp_path, name), config, {"trained": HARDNESS + NOISE[seed]})
    found = compare_runs(given_runs(["*"], tmp_path))
    assert [(group.label, len(group.runs)) for group in found.groups] == [
        ("a (3 runs)", 3),
        ("a-again", 1),
    ]
    assert "a-again: the settings and the seed of a, so the same training again" in found.notes[0]
    assert found.rows["a (3 runs)"]["val"]["lrap"]["num_runs"] == 3
    assert list(found.scores.of_settings.rows) == ["chance", "a-again", "a (3 runs)"]


def test_untrained_rows_are_averaged_only_where_they_differ_by_seed(tmp_path: Path) -> None:
    table, _ = stored_table(tmp_path, 3)
    averaged = [label for label in table.rows if label.endswith(", 3 runs")]
    assert averaged == [
        "initial, 3 runs",
        "lambda_spml = 0.3, 3 runs",
        "lambda_spml = 0.5, 3 runs",
    ]
