"""``raybio.train``: the command's run, arguments in messages, and its model."""

import inspect
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import raybio
from raybio.core.errors import ConfigError, RaybioError
from raybio.methods import METHODS
from raybio.runtime.run.result import Result
from raybio.runtime.train import Run, argument_names, settings_by_path
from raybio.store.store import Store
from tests.paths import ROOT
from tests.script_process import run_script


def nested(settings: dict[str, object]) -> dict[str, object]:
    """Return settings by dotted path as nested mappings."""
    tree: dict[str, object] = {}
    for path, value in settings.items():
        *sections, leaf = path.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})  # type: ignore[assignment]
        node[leaf] = value
    return tree


def test_a_call_gives_the_run_of_the_command_and_its_model(
    unbroken: Result, tiny_store: Store, tiny_settings: dict[str, object], runs: Path
) -> None:
    """The driver has trained it with the same settings, so that the call finds it finished."""
    run = raybio.train(
        "sppt_protein",
        store=tiny_store.path,
        config=nested(tiny_settings),
        name="unbroken",
        runs=runs,
    )
    assert run.result.was_finished
    assert run.result.weights_sha256 == unbroken.weights_sha256
    assert isinstance(run, Run)
    assert run.folder == unbroken.folder.path
    assert run.result.metrics["val/link_lrap"] == unbroken.metrics["val/link_lrap"]
    assert (run.folder / "table.md").is_file()
    assert "finished at step 24" in repr(run)
    proteins = ["MKTAYIAKQR", "MVLSPADK"]
    expected = raybio.load(run.export).encode(proteins)
    assert expected.shape == (2, tiny_settings["encoder.width"])
    np.testing.assert_array_equal(run.load().encode(proteins), expected)
    np.testing.assert_array_equal(raybio.load(run).encode(proteins), expected)
    with pytest.raises(RaybioError, match="another name$|choose another name\\b") as refused:
        raybio.train(
            "sppt_protein",
            store=tiny_store.path,
            config=tiny_settings | {"seed": 5},
            name="unbroken",
            runs=runs,
        )
    assert "--" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "sppt"}, "'sppt' is no method; want one of .* Did you mean 'sppt_mag'"),
        ({"method": "zzqq"}, r"'zzqq' is no method; want one of .* relation_graphs\.$"),
        ({"device": "tpu"}, "^device: got 'tpu', want auto, cpu or gpu"),
        ({"recipe": "papre"}, "^recipe papre: there is no such recipe"),
        ({"config": {"optim.peak_lrr": 1}}, "'optim.peak_lrr' is not a setting. Did you mean"),
        ({"config": {"optim": {"peak_lrr": 1}}}, "'optim.peak_lrr' is not a setting. Did you mean"),
        ({"config": {"optim.peak_lr": "fast"}}, "^optim.peak_lr: got 'fast', want a number"),
        ({"config": {"seed": 1, "optim": {"peak_lr": -1}}}, "^optim.peak_lr: got -1, want"),
        ({"config": {"optim.eps": 1e-8, "optim": {"eps": 1}}}, "optim.eps is given twice"),
        ({"config": ["seed=1"]}, "^config: got list, want a mapping of settings"),
        ({"config": "nowhere.yaml"}, "^nowhere.yaml: cannot read the file"),
        ({"name": "a/b"}, "^name: got 'a/b', want up to 100 letters"),
        ({"store": "http://host/store"}, "^store: got 'http://host/store', want a local"),
        ({"tracking_uri": "ftp://host"}, "^tracking_uri: got 'ftp://...'"),
        ({"workers": 0}, "^workers: got 0, want at least 1"),
    ],
)
def test_wrong_arguments_are_refused_by_their_names(
    arguments: dict[str, object], message: str, tiny_store: Store, tmp_path: Path
) -> None:
    given: dict[str, object] = {"method": "sppt_protein", "runs": tmp_path, "name": "x"}
    given |= {"store": tiny_store.path} | arguments
    with pytest.raises(RaybioError, match=message) as refused:
        raybio.train(**given)  # type: ignore[arg-type]
    assert "--" not in str(refused.value).replace("--help-all", "")


def test_settings_are_taken_literally() -> None:
    model = METHODS["sppt_protein"].config
    values = settings_by_path(model, {"encoder": {"source": Path("a/null"), "lora": {"rank": 8}}})
    assert values == {"encoder.source": '"a/null"', "encoder.lora.rank": 8}
    assert settings_by_path(model, {"encoder.lora.rank": 8, "optim": {}}) == {
        "encoder.lora.rank": 8
    }
    with pytest.raises(ConfigError, match="config: got str"):
        settings_by_path(model, "seed=1")  # type: ignore[arg-type]


def test_messages_of_commands_become_those_of_calls() -> None:
    assert argument_names("Use it with --set input.max_length=40") == (
        'Use it with config={"input.max_length": 40}'
    )
    assert argument_names("alone: --set a.b=1 --set c=false.") == (
        'alone: config={"a.b": 1} config={"c": false}.'
    )
    assert argument_names("or train on the CPU with --device cpu") == (
        'or train on the CPU with device="cpu"'
    )
    assert argument_names("the same command with --yes resumes it") == (
        "the same call with accepts_long_run=True resumes it"
    )
    # Options of other commands stay.
    assert argument_names("raybio prepare (--force replaces it); --dev-share 0.1") == (
        "raybio prepare (--force replaces it); --dev-share 0.1"
    )


def test_every_argument_is_documented() -> None:
    for name in inspect.signature(raybio.train).parameters:
        assert f"        {name}: " in (raybio.train.__doc__ or ""), name


AND_THEN = """
again = raybio.train("sppt_protein", name="lambda_01")
assert again.result.was_finished
assert (again.load().encode(["MKTAYIAKQR", "MVLSPADK"]) == embeddings).all()
adapted = raybio.train(
    "sppt_protein",
    name="second",
    config={"schedule": {"max_steps": 2}, "encoder": {"source": run.export, "lora": {"rank": 2}}},
)
assert not adapted.result.was_finished
"""


@pytest.mark.nightly
def test_the_code_of_the_guide_runs_and_runs_follow_each_other(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    guide = (ROOT / "docs" / "getting_started.md").read_text(encoding="utf-8")
    section = guide.partition("## Train from Python")[2]
    code = section.partition("```python\n")[2].partition("```")[0]
    assert '"schedule.max_steps": 200' in code
    script = tmp_path / "notebook.py"
    script.write_text(
        code.replace('"schedule.max_steps": 200', '"schedule.max_steps": 3') + AND_THEN
    )
    done = run_script(script, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "runs" / "second" / "export" / "model.safetensors").is_file()


@pytest.mark.nightly
def test_the_notebook_runs(tmp_path: Path) -> None:
    cells = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert '"schedule.max_steps": 100' in code
    code = code.replace('"schedule.max_steps": 100', '"schedule.max_steps": 3')
    code = code.replace("%%capture progress\n", "import subprocess\n")
    # A notebook gives such lines to a shell.
    command = rf"subprocess.run('{sys.executable} -m raybio.cli.main \1', shell=True, check=True)"
    code = re.sub("^!raybio (.*)$", command, code, flags=re.M)
    script = tmp_path / "notebook.py"
    script.write_text(code)
    done = run_script(script, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "| look-up |" in done.stdout
