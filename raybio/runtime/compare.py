"""Comparing a run with its kin: the same configuration with other values of one setting, and the table of all.

SPPT's Table 6 is such a comparison: random vectors, the initial encoder, λ = 0, and the λ of the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raybio.config import override, parse_yaml
from raybio.errors import ConfigError
from raybio.markdown import markdown_table
from raybio.runtime.cluster import check_plan
from raybio.runtime.curves import write_curves
from raybio.runtime.metrics_log import read_reports
from raybio.runtime.plots import plot_comparison, plot_table
from raybio.runtime.run_folder import RunFolder, write_json
from raybio.runtime.track import add_artifacts
from raybio.runtime.train import Result, TrainRequest, check_request, train
from raybio.systems import SYSTEMS, TableLayout
from raybio.training.precision import warn_of_slow_bf16
from raybio.training.settings import TrainingConfig

REPETITIONS = ("seed", "plan.sentence_set")
"""Settings whose values are no choice: runs that differ in them are averaged over steps."""


@dataclass(frozen=True)
class Variation:
    """One setting and the other values of it that a run is compared with."""

    path: str
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str) -> "Variation":
        """Read ``objective.lambda_spml=0,0.1,0.5``.

        Raises:
            ConfigError: if it does not have that form.
        """
        path, separator, values = text.partition("=")
        if not separator or not path or not values:
            raise ConfigError(f"--compare {text!r}: want SETTING=VALUE,VALUE such as objective.lambda_spml=0,0.1")
        try:
            return cls(path.strip(), tuple(parse_yaml(f"[{values}]")))
        except ConfigError as error:
            raise ConfigError(f"--compare {text!r}: {error}") from None


@dataclass(frozen=True)
class ResultTable:
    """Scores with intervals, a row a model.

    Attributes:
        rows: label -> split -> score -> {"value", "low", "high"}.
        layout: names of splits and scores, and how they are shown.
    """

    rows: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]
    layout: TableLayout

    @property
    def splits(self) -> list[str]:
        """Splits that any row has."""
        return [split for split in self.layout.splits if any(split in scores for scores in self.rows.values())]

    def cells(self, split: str) -> tuple[list[str], list[list[str]]]:
        """Header and text cells of a split: value and 95 % interval, in percent where the layout says nothing else."""
        body = []
        for label, scores in self.rows.items():
            if split in scores:
                body.append([label, *(self._cell(scores[split][name], name) for name in self.layout.measures)])
        return ["model", *self.layout.measures.values()], body

    def title(self, split: str) -> str:
        """What the table of a split shows."""
        return f"{self.layout.title}, {self.layout.splits[split]}"

    def _cell(self, score: Mapping[str, float], name: str) -> str:
        if name in self.layout.plain:
            return "{value:.3f} [{low:.3f}, {high:.3f}]".format(**score)
        percent = {part: 100 * value for part, value in score.items()}
        return "{value:.2f} [{low:.2f}, {high:.2f}]".format(**percent)


def kin_of(request: TrainRequest, variation: Variation) -> dict[str, TrainRequest]:
    """The runs to compare with, by label; the run's own value is left out.

    Raises:
        ConfigError: if the setting does not exist, or a value does not fit or cannot be part of a run's name.
    """
    kin = {}
    leaf = variation.path.rsplit(".", 1)[-1]
    for value in variation.values:
        config = override(request.config, variation.path, value)
        if config != request.config:
            name = f"{request.name}.{leaf}-{value}"
            try:
                RunFolder(request.runs, name)
            except ConfigError as error:
                raise ConfigError(
                    f"--compare {variation.path}={value}: no name for that run can be made: {error}"
                ) from None
            kin[f"{leaf} = {value}"] = replace(request, config=config, name=name)
    return kin


def compare(request: TrainRequest, variation: Variation | None) -> tuple[Result, ResultTable]:
    """Train the run and its kin, each resumable by itself, and put their final evaluations side by side.

    Whatever is finished already is not trained again. The table goes into the run's folder (``table.md``,
    ``table.json``, ``plots/table-*.png``) and among its MLflow artifacts, and so do the evaluations over steps
    (``over_steps/``), those of repetitions as mean ± deviation.

    Raises:
        RaybioError: as ``train``.
    """
    kin = kin_of(request, variation) if variation is not None else {}
    for other in kin.values():
        check_request(other)  # now, and not when the run itself has been trained
    resources = check_plan(request.workers, request.cpus_per_worker, request.use_gpu)
    if resources is not None and not resources.gpus_per_worker and not request.verbose:
        # The workers say it too, and are heard with --verbose alone.
        warn_of_slow_bf16(request.config.precision, "cpu")
    result = train(request)
    others = {}
    for label, other in kin.items():
        config = same_arithmetic(other.config, result)
        others[label] = train(replace(other, config=config, parent_run_id=result.mlflow_run_id))
    table = ResultTable(_rows(request, result, others, variation), SYSTEMS[request.system].table)
    paths = _write(table, result.folder)
    if variation is not None:
        paths += over_steps(request, {own_label(request, variation): result} | others, variation)
    add_artifacts(result.folder, paths)
    return result, table


def same_arithmetic(config: TrainingConfig, result: Result) -> TrainingConfig:
    """``precision: auto`` as it came out for ``result``: measured anew, a busy machine could give kin another one."""
    if config.precision != "auto" or result.precision is None:
        return config
    return override(config, "precision", result.precision)


def _rows(
    request: TrainRequest, result: Result, others: Mapping[str, Result], variation: Variation | None
) -> dict[str, Any]:
    if "scores" not in result.final:
        return {}
    own = result.final["scores"]
    rows = {label: scores for label, scores in own.items() if label != "trained"}
    rows |= {label: other.final["scores"]["trained"] for label, other in others.items()}
    label = request.name if variation is None else f"{own_label(request, variation)} (this run)"
    return rows | {label: own["trained"]}


def own_label(request: TrainRequest, variation: Variation) -> str:
    """What the run itself is called among its kin: its own value of the setting."""
    *parents, leaf = variation.path.split(".")
    node = request.config.to_mapping()
    for parent in parents:
        node = node[parent]
    return f"{leaf} = {node[leaf]}"


def over_steps(request: TrainRequest, runs: Mapping[str, Result], variation: Variation) -> list[Path]:
    """The system's metric over the steps of all runs, in ``over_steps/`` of the first; repetitions are averaged.

    Nothing is written if some run was not evaluated on its way.
    """
    metric = SYSTEMS[request.system].step_metric
    reports = [read_reports(one.folder.metrics) for one in runs.values()]
    if not all(any(metric in report["metrics"] for report in of_run) for of_run in reports):
        return []
    names_by_label = {label: [one.folder.name] for label, one in runs.items()}
    # A run on all sets at once is no further draw of a set: its curve stands beside the average.
    repeated = [label for label in runs if variation.path in REPETITIONS and not label.endswith(" = all")]
    if len(repeated) > 1:
        names = [name for label in repeated for name in names_by_label.pop(label)]
        names_by_label = {f"{len(names)} runs, by {variation.path}": names} | names_by_label
    out = next(iter(runs.values())).folder.path / "over_steps"
    write_curves(Path(request.runs), names_by_label, metric, out)
    return [out]


def _write(table: ResultTable, folder: RunFolder) -> list[Path]:
    paths = [folder.path / "table.json", folder.path / "table.md"]
    write_json(paths[0], dict(table.rows))
    sections = []
    for split in table.splits:
        header, body = table.cells(split)
        sections.append(f"{table.title(split)}\n\n{markdown_table(header, body)}\n")
        paths.append(plot_table(header, body, folder.plots / f"table-{split}.png", title=table.title(split)))
    splits = {split: table.layout.splits[split] for split in table.splits}
    if not splits:
        return []  # nothing was held out to judge by
    paths.append(plot_comparison(table.rows, splits, table.layout.measures, folder.plots / "comparison.png"))
    paths[1].write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    return paths


def lines_for_terminal(table: ResultTable) -> Sequence[Any]:
    """The table as rich renderables, one a split."""
    from rich.table import Table

    renderables = []
    for split in table.splits:
        header, body = table.cells(split)
        percent = [name for key, name in table.layout.measures.items() if key not in table.layout.plain]
        drawn = Table(title=f"{table.title(split)} (95 % bootstrap intervals; {', '.join(percent)} in %)")
        for number, name in enumerate(header):
            # An interval has a line of its own, so that 80 columns are enough; nothing is ever cut off.
            drawn.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
        for cells in body:
            drawn.add_row(*(cell.replace(" [", "\n[") for cell in cells))
        renderables.append(drawn)
    return renderables
