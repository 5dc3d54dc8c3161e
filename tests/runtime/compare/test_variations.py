"""Comparisons: which runs they ask for, and how their table reads. The training itself is tested
with the jobs.
"""

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from raybio.core.config import override_all
from raybio.core.errors import ConfigError
from raybio.core.final_report import FinalReport, UnitScores
from raybio.core.table_layout import TableLayout
from raybio.evaluation.plots import plot_comparison
from raybio.methods import METHODS
from raybio.runtime.compare.curves import write_curves
from raybio.runtime.compare.plots import plot_scores
from raybio.runtime.compare.setting_names import named, short_names, shown
from raybio.runtime.compare.table import (
    ResultTable,
    lines_for_terminal,
    over_repetitions,
    write_joint_table,
)
from raybio.runtime.compare.variations import (
    Variant,
    Variation,
    compared_groups,
    over_steps,
    run_remarks,
    score_rows,
    variants_of,
)
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsLog
from raybio.runtime.run.result import Result
from raybio.runtime.run.spec import RunSpec

LAYOUT = METHODS["sppt_protein"].table
SCORE = {"value": 0.1234, "low": 0.1, "high": 0.15}
SCORES = dict.fromkeys(("lrap", "ndcg", "average_precision", "mrr"), SCORE)


def request(tmp_path: Path) -> RunSpec:
    entry = METHODS["sppt_protein"]
    return RunSpec(
        method="sppt_protein",
        config=entry.demo,
        store=tmp_path / "store",
        name="first",
        runs=tmp_path / "runs",
    )


def test_a_comparison_reads_a_setting_and_its_values() -> None:
    assert Variation.parse("objective.lambda_spml=0,0.1") == Variation(
        "objective.lambda_spml", (0, 0.1)
    )
    assert Variation.parse("objective.loss=margin_contrastive").values == ("margin_contrastive",)


@pytest.mark.parametrize(
    "text", ["objective.lambda_spml", "=1", "objective.lambda_spml=", "seed= ", " =1"]
)
def test_a_comparison_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="want SETTING=VALUE"):
        Variation.parse(text)


@pytest.mark.parametrize("values", ["[1", "a: b: c", "&a 1, *a", "!!python/name:os.system"])
def test_values_that_are_no_yaml_are_an_error_of_the_configuration(values: str) -> None:
    with pytest.raises(ConfigError, match="--compare 'seed=.*not valid YAML"):
        Variation.parse(f"seed={values}")


def test_variants_without_a_valid_name_are_refused_before_the_run_itself_is_trained(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        ConfigError,
        match=r"--compare objective.lambda_spml=0.125: no name for that run can be made",
    ):
        variants_of(
            replace(request(tmp_path), name="x" * 95),
            [Variation("objective.lambda_spml", (0.125,))],
        )


def test_compared_models_give_their_names_and_folders_differ(tmp_path: Path) -> None:
    models = (
        "facebook/esm2",
        f"{tmp_path}/runs/sppt.lambda-0/export",
        "../runs/sppt.lambda-0/export",
        "./export",
    )
    variants = variants_of(request(tmp_path), [Variation("encoder.source", models)])[1:]
    names = [one.spec.name for one in variants]
    assert [one.label for one in variants] == [
        f"source = {name.partition('.source-')[2]}" for name in names
    ]
    ends = [name.removeprefix(f"{request(tmp_path).name}.source-").rsplit("-", 1) for name in names]
    assert [end for end, _ in ends] == ["esm2", "sppt.lambda-0", "sppt.lambda-0", "export"]
    assert len({digits for _, digits in ends}) == 4


def test_variants_differ_in_one_setting_and_have_names_of_their_own(tmp_path: Path) -> None:
    first = request(tmp_path)
    own = first.config.objective.lambda_spml
    itself, *variants = variants_of(first, [Variation("objective.lambda_spml", (0, 0.1, own))])
    assert itself.spec == first
    assert [other.label for other in variants] == ["lambda_spml = 0", "lambda_spml = 0.1"]
    assert [other.spec.name for other in variants] == [
        "first.lambda_spml-0",
        "first.lambda_spml-0.1",
    ]
    assert [other.spec.config.objective.lambda_spml for other in variants] == [0, 0.1]
    assert all(other.spec.config.plan == first.config.plan for other in variants)


def test_names_and_labels_have_values_as_one_writes_them() -> None:
    values = {0.0: "0", 0.5: "0.5", True: "true", None: "null", "diagonal": "diagonal"}
    assert {value: shown(value) for value in values} == values
    assert (shown(False), named(False)) == ("false", "false")


def test_of_several_settings_every_combination_is_a_run(tmp_path: Path) -> None:
    first = request(tmp_path)
    variants = variants_of(
        first, [Variation("objective.lambda_spml", (0,)), Variation("seed", (1, 0, 2))]
    )
    names = [
        "",
        ".seed-1",
        ".seed-2",
        ".lambda_spml-0",
        ".lambda_spml-0.seed-1",
        ".lambda_spml-0.seed-2",
    ]
    assert [one.spec.name for one in variants] == [f"first{name}" for name in names]
    assert [(one.spec.config.objective.lambda_spml, one.spec.config.seed) for one in variants] == [
        (weight, seed) for weight in (first.config.objective.lambda_spml, 0) for seed in (0, 1, 2)
    ]
    assert variants[4].label == "lambda_spml = 0, seed = 1"
    with pytest.raises(
        ConfigError, match="seed, seed: want each setting once, its values by comma"
    ):
        variants_of(first, [Variation("seed", (1,)), Variation("seed", (2,))])


def test_a_value_given_twice_in_whatever_form_is_one_run(tmp_path: Path) -> None:
    """Counted as two repetitions, it would make the deviation smaller than it is."""
    first = request(tmp_path)
    for path, values, name in (
        ("seed", (1, 1), "first.seed-1"),
        ("seed", (0, 1, 1.0), "first.seed-1"),
        ("objective.lambda_spml", (0, 0.0, 0.5), "first.lambda_spml-0"),
        ("encoder.source", ("scratch", "other", "other"), "first.source-other"),
    ):
        variants = variants_of(first, [Variation(path, values)])
        assert [one.spec.name for one in variants] == ["first", name]
        assert variants[0].spec == first


def test_a_comparison_with_an_unknown_setting_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'objective\.lambda_spml'"):
        variants_of(request(tmp_path), [Variation("objective.lambda_smpl", (0,))])


def test_a_value_that_does_not_fit_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--compare seed: .*abc"):
        variants_of(request(tmp_path), [Variation.parse("seed=abc")])


def test_the_table_shows_every_value_whole_also_in_a_narrow_terminal() -> None:
    table = ResultTable(
        {
            "random": {"train": SCORES, "val": SCORES},
            "lambda_spml = 0.5 (this run)": {"train": SCORES},
        },
        LAYOUT,
    )
    assert table.splits == ["train", "val"]
    header, body = table.cells("train")
    assert header == ["model", "LRAP", "nDCG", "AP", "MRR"]
    assert body[0] == ["random", *["12.34 [10.00, 15.00]"] * 3, "0.123 [0.100, 0.150]"]
    assert len(table.cells("val")[1]) == 1
    console = Console(width=80, record=True)
    for renderable in lines_for_terminal(table):
        console.print(renderable)
    shown = console.export_text()
    assert "…" not in shown
    assert shown.count("15.00]") == 9


def test_a_title_wider_than_its_table_stays_on_one_line() -> None:
    rows = {"random": {"train": {"lrap": SCORES["lrap"]}}}
    sizes = {"train": "macro F1 of 26 rows"}
    layout = replace(LAYOUT, measures={"lrap": "LRAP"})
    table = ResultTable(rows, layout, sizes=sizes)
    console = Console(width=100, record=True)
    for renderable in lines_for_terminal(table):
        console.print(renderable)
    assert table.title("train") in console.export_text()


def test_repetitions_are_shown_one_by_one_and_as_mean_and_deviation(tmp_path: Path) -> None:
    variants = variants_of(
        request(tmp_path), [Variation("objective.lambda_spml", (0,)), Variation("seed", (1, 2))]
    )
    results = [result_of(tmp_path, one, 0.1 * (number + 1)) for number, one in enumerate(variants)]
    table = ResultTable(score_rows(variants, results), LAYOUT)
    body = {cells[0]: cells[1] for cells in table.cells("train")[1]}
    assert body == {
        "initial": "5.00 [4.00, 6.00]",
        # 0.05, 0.1, 0.15: scores without training differ by seed too.
        "initial, 3 runs": "10.00 ± 5.00",
        "initial, lambda_spml = 0, 3 runs": "25.00 ± 5.00",
        "lambda_spml = 0.5, seed = 1": "20.00 [19.00, 21.00]",
        "lambda_spml = 0.5, seed = 2": "30.00 [29.00, 31.00]",
        "lambda_spml = 0, seed = 0": "40.00 [39.00, 41.00]",
        "lambda_spml = 0, seed = 1": "50.00 [49.00, 51.00]",
        "lambda_spml = 0, seed = 2": "60.00 [59.00, 61.00]",
        "lambda_spml = 0.5, seed = 0 (this run)": "10.00 [9.00, 11.00]",
        "lambda_spml = 0.5, 3 runs": "20.00 ± 10.00",
        "lambda_spml = 0, 3 runs": "50.00 ± 10.00",
    }
    assert table.cells("train")[1][-1][-1] == "0.200 ± 0.100"
    spread = "± standard deviation over runs"
    assert table.legend == f"95 % bootstrap intervals over units; {spread}; LRAP, nDCG, AP in %"


def test_rows_without_training_of_other_settings_are_shown_with_the_settings_that_change_them(
    tmp_path: Path,
) -> None:
    """The encoder before training depends on its size and the seed, and not on the loss."""
    layers = METHODS["sppt_protein"].demo.encoder.num_layers
    variants = variants_of(
        request(tmp_path),
        [
            Variation("encoder.num_layers", (layers + 1,)),
            Variation("objective.lambda_spml", (0,)),
            Variation("seed", (1,)),
        ],
    )
    results = []
    for variant in variants:
        value = 0.2 * variant.spec.config.encoder.num_layers + 0.02 * variant.spec.config.seed
        trained = 1 - variant.spec.config.objective.lambda_spml
        result = result_of(tmp_path, variant, value)
        result.final.scores["trained"] = result_of(tmp_path, variant, trained).final.scores[
            "trained"
        ]
        results.append(result)
    body = {
        cells[0]: cells[1]
        for cells in ResultTable(score_rows(variants, results), LAYOUT).cells("train")[1]
        if cells[0].startswith("initial")
    }
    own = 10 * layers
    assert body == {
        "initial": f"{own:.2f} [{own - 1:.2f}, {own + 1:.2f}]",
        "initial, 2 runs": f"{own + 0.5:.2f} ± 0.71",
        f"initial, num_layers = {layers + 1}, 2 runs": f"{own + 10.5:.2f} ± 0.71",
    }
    # Without repetitions the row is that of one run.
    pairs = [
        (variant, result)
        for variant, result in zip(variants, results, strict=True)
        if variant.spec.config.seed == 0
    ]
    rows = score_rows(*zip(*pairs, strict=True))
    assert [label for label in rows if label.startswith("initial")] == [
        "initial",
        f"initial, num_layers = {layers + 1}",
    ]


def joint_table(
    tmp_path: Path,
    rows_by_name: dict[str, dict[str, Any]],
    layout: TableLayout,
    repeated: frozenset[str] = frozenset(),
) -> list[str]:
    """Lines of the table of several comparisons, each with a run of its name."""
    found = {
        name: (ResultTable(rows, layout, repeated=repeated), RunFolder(tmp_path, name))
        for name, rows in rows_by_name.items()
    }
    for _, folder in found.values():
        folder.make()
    path = write_joint_table(found)
    assert path == tmp_path / next(iter(found)) / "joint_table.md"
    return [line for line in path.read_text().splitlines() if line.startswith("|")]


def test_models_of_several_comparisons_stand_in_a_row_each(tmp_path: Path) -> None:
    one = TableLayout("Task", {"lrap": "score"}, {"test": "rows"})

    def of(value: float) -> dict[str, Any]:
        return {"test": {"lrap": {"value": value, "low": value, "high": value}}}

    head, _, *rows = joint_table(
        tmp_path / "plain",
        {"a": {"initial": of(0.1), "a": of(0.2)}, "b": {"initial": of(0.3), "b": of(0.4)}},
        one,
    )
    assert head == "| model | a | b |"
    table = ResultTable({"initial": of(0.1)}, one, sizes={"test": "accuracy of 12 rows"})
    folder = RunFolder(tmp_path / "plain", "a")
    for sizes, title in (
        (table.sizes, "Task, rows: accuracy of 12 rows"),
        ({"test": "macro F1 of 12 rows"}, "Task, rows"),
    ):
        tables = {"a": (table, folder), "b": (replace(table, sizes=sizes), folder)}
        assert write_joint_table(tables).read_text().splitlines()[0] == title
    assert rows == [
        "| initial | 10.00 [10.00, 10.00] | 30.00 [30.00, 30.00] |",
        "| this run | 20.00 [20.00, 20.00] | 40.00 [40.00, 40.00] |",
    ]
    # A value of a setting that is one's own and the other's variation is one row; what only one has
    # leaves a gap.
    a = {"peak_lr = 1": of(0.1), "peak_lr = 2 (this run)": of(0.2)}
    b = {"peak_lr = 2": of(0.3), "peak_lr = 3": of(0.5), "peak_lr = 1 (this run)": of(0.4)}
    rows = joint_table(tmp_path / "rates", {"a": a, "b": b}, one)[2:]
    assert [row.split("|")[1].strip() for row in rows] == [
        "peak_lr = 1",
        "peak_lr = 2",
        "peak_lr = 3",
    ]
    assert [row.split("|")[2].strip()[:2] for row in rows] == ["10", "20", "-"]
    assert [row.split("|")[3].strip()[:2] for row in rows] == ["40", "30", "50"]


def test_the_joint_table_of_comparisons_with_repetitions_has_their_means(
    tmp_path: Path,
) -> None:
    score = {"value": 0.5, "low": 0.4, "high": 0.6, "num_runs": 2}
    mean = {"test": dict.fromkeys(LAYOUT.measures, score)}
    single = {label: {"test": SCORES} for label in ("seed = 1", "seed = 0 (this run)")}
    rows = {"chance": {"test": SCORES}, **single, "2 runs": mean}
    layout = replace(LAYOUT, splits={"test": "rows"})
    head, _, *body = joint_table(tmp_path, {"a": rows, "b": rows}, layout, frozenset(single))
    assert head.count("a, ") == head.count("b, ") == len(LAYOUT.measures)
    chance, means = body
    assert chance.startswith("| chance | 12.34 [10.00, 15.00] |")
    assert means.startswith("| 2 runs | 50.00 ± 10.00 |")


def test_a_table_of_runs_that_are_no_repetitions_has_no_means(tmp_path: Path) -> None:
    variants = variants_of(request(tmp_path), [Variation("objective.lambda_spml", (0,))])
    rows = score_rows(variants, [result_of(tmp_path, one, 0.1) for one in variants])
    assert list(rows) == ["initial", "lambda_spml = 0", "lambda_spml = 0.5 (this run)"]
    assert "±" not in ResultTable(rows, LAYOUT).legend


def test_the_remarks_say_if_weights_were_chosen_on_what_the_table_scores(tmp_path: Path) -> None:
    for metric, expected in (("val/link_ndcg", 1), ("val/log_likelihood", 0), (None, 0)):
        spec = request(tmp_path)
        config = override_all(spec.config, {"schedule.keep_best": metric})
        variants = variants_of(replace(spec, config=config), [])
        remarks = run_remarks(variants, [result_of(tmp_path, one, 0.1) for one in variants])
        assert len(remarks) == expected
        assert all("weights was chosen by val/link_ndcg, on units" in line for line in remarks)


def result_of(tmp_path: Path, one: Variant, value: float) -> Result:
    scores = {
        who: {
            "train": dict.fromkeys(
                LAYOUT.measures, {"value": mean, "low": mean - 0.01, "high": mean + 0.01}
            )
        }
        for who, mean in (("initial", value / 2), ("trained", value))
    }
    folder = RunFolder(tmp_path, one.spec.name)
    return Result(
        "finished", 1, "fp32", {}, FinalReport(scores=scores), {}, None, None, None, False, folder
    )


def test_a_run_called_like_a_row_without_training_replaces_no_row(tmp_path: Path) -> None:
    variants = variants_of(replace(request(tmp_path), name="initial"), [])
    results = [result_of(tmp_path, variants[0], 0.4)]
    rows = score_rows(variants, results)
    values = {label: scores["train"]["mrr"]["value"] for label, scores in rows.items()}
    assert values == {"initial": 0.2, "initial (this run)": 0.4}
    (group,) = compared_groups(variants, results)
    assert group.label == "initial (this run)"


def test_settings_of_one_last_name_have_the_shortest_names_that_differ(tmp_path: Path) -> None:
    assert short_names(["a.x", "a.b.x", "a.y", "y.x.z"]) == {
        "a.x": "a.x",
        "a.b.x": "b.x",
        "a.y": "y",
        "y.x.z": "z",
    }
    spec = request(tmp_path)
    spec = replace(spec, config=override_all(spec.config, {"encoder.lora.rank": "2"}))
    both = [Variation.parse(f"encoder.{path}=0.2") for path in ("dropout", "lora.dropout")]
    variants = variants_of(spec, both)
    assert [one.spec.name for one in variants] == [
        "first",
        "first.lora.dropout-0.2",
        "first.encoder.dropout-0.2",
        "first.encoder.dropout-0.2.lora.dropout-0.2",
    ]
    assert variants[3].label == "encoder.dropout = 0.2, lora.dropout = 0.2"


def test_the_comparison_is_drawn_also_where_a_model_lacks_a_split(tmp_path: Path) -> None:
    rows = {"random": {"train": SCORES, "val": SCORES}, "this run": {"train": SCORES}}
    splits = {split: LAYOUT.splits[split] for split in ("train", "val")}
    path = plot_comparison(rows, splits, LAYOUT.measures, tmp_path / "plots" / "comparison.png")
    assert imread(path).shape[1] > imread(path).shape[0] > 100


def test_the_comparison_is_drawn_also_where_a_score_is_undefined(tmp_path: Path) -> None:
    undefined = {
        measure: dict.fromkeys(("value", "low", "high"), np.nan) for measure in LAYOUT.measures
    }
    for rows in ({"constant": undefined, "this run": SCORES}, {"this run": undefined}):
        of_split = {label: {"val": scores} for label, scores in rows.items()}
        splits = {"val": LAYOUT.splits["val"]}
        assert (
            plot_comparison(of_split, splits, LAYOUT.measures, tmp_path / "comparison.png")
            .stat()
            .st_size
            > 1000
        )


def test_the_comparison_of_repetitions_that_are_all_perfect_is_drawn(tmp_path: Path) -> None:
    perfect = UnitScores(np.arange(30), {"lrap": np.ones(30)})
    scores = {"val": {"lrap": {"value": 1.0, "low": 1.0, "high": 1.0}}}
    row = over_repetitions(3 * [scores], 3 * [{"val": perfect}], ["lrap"])
    titles = {"lrap": "LRAP"}
    plot_comparison({"3 runs": row}, {"val": "held-out"}, titles, tmp_path / "comparison.png")
    plot_scores({"3 runs": row["val"]}, titles, tmp_path / "scores.png", title="held-out")
    assert imread(tmp_path / "scores.png").shape[1] > 100


def finished(
    runs: Path, name: str, value_by_step: dict[int, float], metric: str = "val/link_mrr"
) -> Result:
    """A run as training leaves it, as far as its evaluations go."""
    folder = RunFolder(runs, name)
    folder.make()
    log = MetricsLog(folder.metrics)
    for step, value in value_by_step.items():
        log.append(step, {"loss": 1.0} | ({} if np.isnan(value) else {metric: value}))
    return Result("finished", 1, "fp32", {}, {}, {}, None, None, None, False, folder)


def means_over_steps(
    variants: list[Variant], value_by_step: Callable[[Variant], dict[int, float]]
) -> list[tuple[str, int, str]]:
    """Label, step and runs with mean and deviation of what such runs would leave behind."""
    metric, *_ = METHODS[variants[0].spec.method].step_metrics
    results = [
        finished(one.spec.runs, one.spec.name, value_by_step(one), metric) for one in variants
    ]
    (out,) = over_steps(variants, results)
    assert [path.name for path in out.iterdir()] == [metric.removeprefix("val/")]
    with (out / metric.removeprefix("val/") / "curves.csv").open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [
        (label, int(step), f"{num}: {float(mean):.3f} ± {float(dev):.3f}")
        for label, step, num, mean, dev in rows
    ]


def test_mrr_over_steps_is_printed_as_in_tables_and_shares_in_percent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.axes import Axes

    drawn = []
    set_axes = Axes.set
    monkeypatch.setattr(
        Axes, "set", lambda axes, **given: drawn.append(given) or set_axes(axes, **given)
    )
    folder = RunFolder(tmp_path, "run")
    folder.make()
    MetricsLog(folder.metrics).append(
        10, {"val/link_mrr": 0.0804, "val/link_lrap": 0.0804, "val/pair_mrr": 0.5}
    )
    for metric, line in (
        ("val/link_mrr", "step 10: 0.080\n"),
        ("val/link_lrap", "step 10: 8.04\n"),
    ):
        out = tmp_path / metric
        write_curves(tmp_path, {"a": ["run"]}, metric, out, METHODS["sppt_protein"])
        printed = capsys.readouterr().out
        assert line in printed
        assert ("in percent" in printed) == (metric != "val/link_mrr")
        assert "±" not in printed  # a single run
        rows = (out / "curves.csv").read_text().splitlines()
        assert rows[1] == "a,10,1,0.0804,0.0"
    assert [axes["ylabel"] for axes in drawn if "ylabel" in axes] == ["link_mrr", "link_lrap (%)"]
    assert METHODS["mtb_pretrain"].table.scale("val/pair_mrr") == (1, 3)


def test_runs_by_seed_are_averaged_over_steps_and_those_by_another_setting_are_separate_lines(
    tmp_path: Path,
) -> None:
    first = request(tmp_path)
    by_seed = variants_of(first, [Variation("seed", (1,))])
    assert means_over_steps(
        by_seed, lambda one: {0: 0.1, 50: 0.2 + 0.2 * one.spec.config.seed}
    ) == [
        ("2 runs, by seed", 0, "2: 0.100 ± 0.000"),
        ("2 runs, by seed", 50, "2: 0.300 ± 0.141"),
    ]
    by_weight = variants_of(first, [Variation("objective.lambda_spml", (0,))])
    assert means_over_steps(by_weight, lambda _: {0: 0.1}) == [
        ("lambda_spml = 0.5", 0, "1: 0.100 ± 0.000"),
        ("lambda_spml = 0", 0, "1: 0.100 ± 0.000"),
    ]


def test_repetitions_are_averaged_for_each_value_of_what_is_chosen(tmp_path: Path) -> None:
    """As in Contrastive-Probe's Figure 9: each mask ratio's mean over sentence sets."""
    first = request(tmp_path)
    variants = variants_of(
        first, [Variation("objective.lambda_spml", (0,)), Variation("seed", (1,))]
    )
    assert means_over_steps(
        variants,
        lambda one: {0: one.spec.config.objective.lambda_spml + 0.2 * one.spec.config.seed},
    ) == [
        ("lambda_spml = 0.5, 2 runs, by seed", 0, "2: 0.600 ± 0.141"),
        ("lambda_spml = 0, 2 runs, by seed", 0, "2: 0.100 ± 0.141"),
    ]


def test_a_run_on_all_sentence_sets_is_no_repetition_of_runs_on_one(
    tmp_path: Path,
) -> None:
    entry = METHODS["contrastive_probe"]
    first = RunSpec(
        method="contrastive_probe",
        config=entry.demo,
        store=tmp_path / "store",
        name="first",
        runs=tmp_path / "runs",
    )
    sets, seeds = Variation("plan.sentence_set", (0, 1)), Variation("seed", (1,))

    def value(one: Variant) -> dict[int, float]:
        chosen = one.spec.config.plan.sentence_set
        return {0: 0.9 if chosen == "all" else 0.1 * chosen}

    assert means_over_steps(variants_of(first, [sets]), value) == [
        ("sentence_set = all", 0, "1: 0.900 ± 0.000"),
        ("2 runs, by sentence_set", 0, "2: 0.050 ± 0.071"),
    ]
    assert means_over_steps(variants_of(replace(first, name="second"), [sets, seeds]), value) == [
        ("sentence_set = all, 2 runs, by seed", 0, "2: 0.900 ± 0.000"),
        ("4 runs, by sentence_set and seed", 0, "4: 0.050 ± 0.058"),
    ]


def test_runs_without_evaluations_during_training_have_nothing_over_steps(tmp_path: Path) -> None:
    first = request(tmp_path)
    variants = variants_of(first, [Variation("seed", (1,))])
    results = [finished(first.runs, "a", {0: 0.1}), finished(first.runs, "b", {0: float("nan")})]
    assert over_steps(variants, results) == []
    assert not (first.runs / "a" / "over_steps").exists()
