import sys
from pathlib import Path

import pytest

from raybio.cli.main import main
from raybio.cli.train_and_compare import mlflow_line
from raybio.core.errors import ConfigError
from raybio.core.fields import fields
from raybio.core.records import write_record
from raybio.methods import METHODS
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.options import (
    RunOptions,
    check_writable,
    default_folder,
    resolve,
    runs_folder,
)
from raybio.runtime.run.spec import Compute
from raybio.store.store import Store
from tests.paths import ROOT
from tests.script_process import Done, run_script

NAME = "sppt_protein"


def run_job(folder: Path, *arguments: str, job: str = "sppt_protein.py") -> Done:
    return run_script(ROOT / "jobs" / job, folder, *arguments, COLUMNS="200")


def test_help_lists_every_setting_with_type_default_range_and_meaning(tmp_path: Path) -> None:
    shown = run_job(tmp_path, "--help-all")
    assert shown.returncode == 0, shown.stderr
    for field in fields(METHODS[NAME].config):
        assert f"  {field.path}  {field.type}  {field.default}" in shown.stdout
        assert field.meaning in shown.stdout
    assert f"default: {METHODS[NAME].comparison}" in shown.stdout
    for option in (
        "--store",
        "--config",
        "--set",
        "--init",
        "--seeds",
        "--workers",
        "--name",
        "--runs",
        "--tracking-uri",
        "--dry-run",
        "--verbose",
    ):
        assert option in shown.stdout


@pytest.mark.parametrize("option", ["--help", "--help-all"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["finetune", "protein_regression"],
        ["finetune", "protein_regression", "--data", "nothing.csv"],
        ["contrastive_probe", "--sentences", "nothing.txt"],
    ],
)
def test_help_of_a_command_whose_arguments_are_expanded_reads_nothing(
    arguments: list[str], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["raybio"])
    with pytest.raises(SystemExit) as ended:
        main("train", *arguments, option)
    assert ended.value.code in (0, None)
    assert "--recipe" in capsys.readouterr().out
    assert not any(tmp_path.iterdir())


def test_help_of_a_sweep_prepares_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["raybio"])
    with pytest.raises(SystemExit) as ended:
        main("sweep", "contrastive_probe", "--sentences", "nothing.txt", "--help")
    assert ended.value.code in (0, None)
    assert "--dry-run" in capsys.readouterr().out


def test_the_synthetic_experiments_list_their_settings_too(tmp_path: Path) -> None:
    shown = run_job(tmp_path, "--help-all", job="sppt_synthetic.py")
    assert shown.returncode == 0, shown.stderr
    assert "--repeats" in shown.stdout
    for field in fields(METHODS["sppt_synthetic"].config):
        assert f"  {field.path}  {field.type}  {field.default}" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--alias", "champion"], "names a registered version; give --register, too"),
        (["--register", "a/b"], "--register: got 'a/b', want up to 250 letters"),
        (["--register", "a", "--alias", "v1"], "--alias: got 'v1', want letters"),
    ],
)
def test_a_registration_is_checked_before_training(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    refused = run_job(tmp_path, *arguments)
    assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stderr", "stdout"]


def test_a_misspelt_setting_is_one_message_with_the_right_one_and_exit_code_2(
    tmp_path: Path,
) -> None:
    refused = run_job(tmp_path, "--set", "objective.lambda_smpl=0.1")
    assert refused.returncode == 2
    assert "Did you mean 'objective.lambda_spml'" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_request_for_a_comparison_and_for_none_is_refused(tmp_path: Path) -> None:
    refused = run_job(tmp_path, "--compare", "seed=1", "--no-baseline")
    assert refused.returncode == 2
    assert "ConfigError: --compare seed=1 and --no-baseline: got both" in refused.stderr


def test_a_dry_run_lists_the_runs_of_a_comparison_and_writes_nothing(
    tmp_path: Path, tiny_store: Store
) -> None:
    arguments = ["--store", str(tiny_store.path), "--name", "table", "--seeds", "2", "--dry-run"]
    planned = run_job(tmp_path, *arguments, "--compare", "objective.lambda_spml=0,0.5")
    assert planned.returncode == 0, planned.stderr
    lines = planned.stdout.splitlines()
    assert "6 runs, 6 not finished" in lines
    listed = [line.split()[1] for line in lines if line.endswith(" steps")]
    names = ["table", "table.lambda_spml-0", "table.lambda_spml-0.5"]
    assert listed == [f"{name}{seed}:" for name in names for seed in ("", ".seed-1")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stderr", "stdout"]


def test_a_dry_run_on_the_built_in_corpus_says_where_that_is_prepared(tmp_path: Path) -> None:
    planned = run_job(tmp_path, "--dry-run", "--no-baseline")
    assert planned.returncode == 0, planned.stderr
    (path,) = tmp_path.glob("stores/*/store")
    line = f"store: {path} (the built-in corpus, prepared on first use)"
    assert line in planned.stdout.splitlines()


def test_a_run_that_cannot_have_the_default_comparison_is_trained_alone_and_says_so(
    tmp_path: Path, tiny_store: Store
) -> None:
    arguments = ["--store", str(tiny_store.path), "--name", "alone", "--dry-run"]
    arguments += ["--set", "objective.lambda_spml=1", "--set", "objective.masked_anchors=false"]
    planned = run_job(tmp_path, *arguments)
    assert planned.returncode == 0, planned.stderr
    lines = planned.stdout.splitlines()
    remark = "not compared with objective.lambda_spml=0: objective.masked_anchors is false with "
    assert any(line.startswith(remark) for line in lines)
    assert [line.split()[1] for line in lines if line.endswith(" steps")] == ["alone:"]
    # A comparison that was asked for is refused.
    refused = run_job(tmp_path, *arguments, "--compare", "objective.lambda_spml=0")
    assert refused.returncode == 2
    assert "ConfigError: --compare objective.lambda_spml: objective.masked_a" in refused.stderr


def test_a_batch_larger_than_the_graph_is_refused_by_a_dry_run_and_before_ray_starts(
    tmp_path: Path, tiny_store: Store
) -> None:
    arguments = ["--store", str(tiny_store.path), "--no-baseline", "--runs", str(tmp_path / "runs")]
    arguments += ["--set", "plan.anchor_order=group_first", "--set", "plan.global_batch_rows=65"]
    for dry_run in ([], ["--dry-run"]):
        refused = run_job(tmp_path, *arguments, *dry_run)
        assert refused.returncode == 2
        assert "only 64 nodes have a link and plan.anchor_order=group_first" in refused.stderr
        assert "give --set plan.global_batch_rows=64 or less" in refused.stderr
    assert not (tmp_path / "runs").exists()


def test_all_folds_of_a_method_without_folds_are_refused(tmp_path: Path) -> None:
    refused = run_job(tmp_path, "--all-folds")
    assert refused.returncode == 2
    assert "--all-folds: sppt_protein has no setting data.fold; leave it out" in refused.stderr


def test_a_run_that_has_no_model_yet_is_nothing_to_begin_with(tmp_path: Path) -> None:
    (tmp_path / "runs" / "mtb").mkdir(parents=True)
    write_record(tmp_path / "runs" / "mtb" / "run.json", "run", {})
    refused = run_job(tmp_path, "--init", "runs/mtb", job="relation_finetune.py")
    assert refused.returncode == 2
    assert (
        "ConfigError: --init runs/mtb: that run has no model yet (export/); run its command to"
        in refused.stderr
    )


def test_a_model_that_cannot_be_loaded_is_named_by_the_option_that_gave_it(
    tmp_path: Path, tiny_store: Store
) -> None:
    (tmp_path / "empty").mkdir()
    refused = run_job(tmp_path, "--init", "empty", "--dry-run")
    assert refused.stderr.startswith("ConfigError: --init empty cannot be loaded: it has no weig")
    arguments = ["--store", str(tiny_store.path), "--dry-run"]
    refused = run_job(tmp_path, *arguments, "--no-baseline", "--init", "models/of/nobody")
    assert refused.stderr.startswith("ConfigError: --init models/of/nobody: no such folder. ")
    refused = run_job(tmp_path, *arguments, "--compare", "encoder.source=models/of/nobody")
    assert refused.stderr.startswith("ConfigError: encoder.source 'models/of/nobody': no such ")


def test_a_sweep_is_nothing_to_begin_with_but_its_trials_are(tmp_path: Path) -> None:
    (tmp_path / "sweeps" / "mine").mkdir(parents=True)
    write_record(tmp_path / "sweeps" / "mine" / "run.json", "run", {"config": {"space": {}}})
    refused = run_job(tmp_path, "--init", "sweeps/mine", job="relation_finetune.py")
    assert refused.returncode == 2
    assert (
        "--init sweeps/mine: is a sweep; want a trial's model: sweeps/mine/trials/TRIAL/export"
        in refused.stderr
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("objective.lambda_spml=2", "objective.lambda_spml: got 2"),
        ("seed=abc", "seed: got 'abc'"),
        ("nothing", "want SETTING=VALUE"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_starts(
    setting: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(NAME, RunOptions(settings=(setting,), runs=tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_folder_of_runs_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "run.json").write_text("{}")
    for runs, message in {
        Path("/proc/runs"): "cannot be written",
        tmp_path / "file": "is a file",
        tmp_path / "first": "holds a run or a sweep",
    }.items():
        with pytest.raises(ConfigError, match=f"--runs {runs}: .*{message}"):
            check_writable(runs, None)
    # Sweeps and dry runs need no folder of runs.
    assert resolve(NAME, RunOptions(runs=Path("/proc/runs"))).runs == Path("/proc/runs")


def test_settings_come_from_defaults_then_the_file_then_the_command(
    tiny_store: Store, tmp_path: Path
) -> None:
    (tmp_path / "my.yaml").write_text("seed: 3\nobjective: {lambda_spml: 0.25}\n")
    arguments = RunOptions(
        store=tiny_store.path, config=tmp_path / "my.yaml", settings=("seed=4",), runs=tmp_path
    )
    config = resolve(NAME, arguments).config
    assert (config.seed, config.objective.lambda_spml, config.encoder.width) == (4, 0.25, 768)


def test_without_a_name_the_same_command_means_the_same_run(
    tiny_store: Store, tmp_path: Path
) -> None:
    first, same = (
        resolve(NAME, RunOptions(store=tiny_store.path, runs=tmp_path)).name for _ in range(2)
    )
    other = resolve(
        NAME, RunOptions(store=tiny_store.path, settings=("seed=1",), runs=tmp_path)
    ).name
    assert first == same != other


def test_a_name_alone_continues_with_the_runs_own_settings_and_store(
    tiny_store: Store, tmp_path: Path
) -> None:
    request = resolve(
        NAME, RunOptions(store=tiny_store.path, settings=("seed=5",), name="first", runs=tmp_path)
    )
    folder = RunFolder(tmp_path, "first")
    folder.open(NAME, request.config, request.store, tiny_store.digest, ())
    again = resolve(NAME, RunOptions(name="first", runs=tmp_path))
    assert (again.config, again.store) == (request.config, request.store)


def test_runs_of_a_job_go_where_they_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    monkeypatch.delenv("RAYBIO_RUNS", raising=False)
    assert default_folder("runs", "RAYBIO_RUNS") == Path("runs")
    throw_away = tmp_path / "runtime_resources" / "working_dir_files" / "x"
    throw_away.mkdir(parents=True)
    monkeypatch.chdir(throw_away)
    assert default_folder("runs", "RAYBIO_RUNS") == Path.home() / "raybio" / "runs"
    assert "RAYBIO_RUNS" in capsys.readouterr().out
    monkeypatch.setenv("RAYBIO_RUNS", str(tmp_path))
    assert default_folder("runs", "RAYBIO_RUNS") == tmp_path


@pytest.mark.parametrize("kind", ["runs", "stores", "sweeps"])
def test_an_empty_variable_counts_as_none(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It meant the working directory."""
    variable = f"RAYBIO_{kind.upper()}"
    monkeypatch.setenv(variable, "")
    assert default_folder(kind, variable) == Path(kind)
    assert runs_folder(None, kind, variable) == (Path(kind), None)


def test_a_name_of_a_run_of_another_method_is_refused_by_it(tmp_path: Path) -> None:
    RunFolder(tmp_path, "first").open(NAME, METHODS[NAME].config(), tmp_path / "s", "d", ())
    with pytest.raises(ConfigError, match="--name first: is a run of sppt_protein; choose another"):
        resolve("sppt_mag", RunOptions(name="first", runs=tmp_path))


def test_embedding_wants_a_run_or_a_model(tmp_path: Path) -> None:
    refused = run_job(tmp_path, "--input", "a.fasta", "--out", "b.parquet", job="embed.py")
    assert refused.returncode == 2
    assert "either --run or --model" in refused.stderr


def test_a_name_alone_continues_with_as_many_workers_as_the_run_began_with(
    tiny_store: Store, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path, "first")
    folder.make()
    write_record(
        folder.launch,
        "launch",
        {
            "workers": 2,
            "cpus_per_worker": 0.5,
            "tracking": "http://127.0.0.1:5",
            "recipe": "small",
        },
    )
    again = resolve(NAME, RunOptions(store=tiny_store.path, name="first", runs=tmp_path))
    assert again.recipe == "small"
    assert (again.compute.workers, again.compute.cpus_per_worker, again.tracking) == (
        2,
        0.5,
        "http://127.0.0.1:5",
    )
    assert (
        resolve(
            NAME,
            RunOptions(
                store=tiny_store.path, name="first", runs=tmp_path, compute=Compute(workers=1)
            ),
        ).compute.workers
        == 1
    )
    assert (
        resolve(
            NAME, RunOptions(store=tiny_store.path, name="second", runs=tmp_path)
        ).compute.workers
        == 1
    )


def test_the_configuration_that_a_sweep_or_run_left_brings_its_store(
    tiny_store: Store, tmp_path: Path, capsys
) -> None:
    config = tmp_path / "best.yaml"
    config.write_text("optim: {peak_lr: 0.001}\n")
    write_record(tmp_path / "run.json", "run", {"store": str(tiny_store.path)})
    fields = resolve("sppt_protein", RunOptions(config=config))
    assert fields.store == Path(tiny_store.path)
    assert fields.config == METHODS["sppt_protein"].config.from_mapping(
        {"optim": {"peak_lr": 0.001}}
    )
    assert f"store: {tiny_store.path}" in capsys.readouterr().out


def test_the_configuration_that_a_sweep_left_is_trained_as_its_best_trial_was(
    tiny_store: Store, tmp_path: Path, capsys
) -> None:
    """With other threads it would not be bit-identical."""
    config = tmp_path / "best.yaml"
    config.write_text("seed: 3\n")
    write_record(tmp_path / "run.json", "run", {"store": str(tiny_store.path)})
    launch = {"workers": 2, "threads_per_worker": 4, "use_gpu": False, "given": {"workers": 3}}
    write_record(tmp_path / "launch.json", "launch", launch)
    fields = resolve(NAME, RunOptions(config=config, runs=tmp_path / "runs"))
    assert (fields.compute.workers, fields.compute.threads_per_worker, fields.compute.device) == (
        2,
        4,
        "cpu",
    )
    assert f"recorded setup of {config} (2 workers × 4 threads on CPUs)" in capsys.readouterr().out
    given = resolve(
        NAME,
        RunOptions(
            config=config,
            runs=tmp_path / "runs",
            compute=Compute(cpus_per_worker=1.0, device="gpu"),
        ),
    )
    assert (given.compute.workers, given.compute.threads_per_worker, given.compute.device) == (
        2,
        None,
        "gpu",
    )


def test_the_run_in_mlflow_is_that_of_its_last_tracking(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "first")
    folder.path.mkdir()
    assert mlflow_line(folder, None) == "has no run yet; the same command sends it"
    write_record(folder.tracking, "tracking", {"uri": "http://name:word@host", "run_id": "new"})
    line = mlflow_line(folder, "of the result")
    assert line == "run new, mlflow ui --backend-store-uri host"
