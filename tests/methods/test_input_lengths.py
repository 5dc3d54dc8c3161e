"""How much of their rows the systems read, by counting tokens one row at a time; and what is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raybio.core.config import override_all
from raybio.core.errors import ConfigError
from raybio.encoders import input_lengths as counting
from raybio.encoders.input_lengths import check_rows_differ
from raybio.methods import METHODS
from raybio.methods.sppt.downstream.formats.read import read_task_files
from raybio.methods.sppt.downstream.prepare import prepare_task
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.runtime.run.checks import check_spec
from raybio.runtime.run.spec import RunSpec
from raybio.store.store import Store
from tests.methods.conformance_cases import CASES, tiny_config

TEXTS = {
    "sppt_mag": {"encoder.max_length": 8},
    "sppt_synthetic": {"encoder.max_length": 30},
    "biostransformers": {"encoder.max_length": 6, "text.max_characters": 30},
    "contrastive_probe": {
        "encoder.max_length": 8,
        "cloze.max_tokens": 8,
        "evaluation.max_query_tokens": 7,
        "evaluation.max_name_tokens": 4,
    },
    "mtb_pretrain": {"encoder.max_document_tokens": 40},
    "relation_finetune": {"encoder.max_document_tokens": 40},
}


def stability(folder: Path, sequences: list[str]) -> TaskStore:
    """A task on numbers; dev and test are the first two sequences."""
    folder.mkdir(parents=True, exist_ok=True)
    for ending, rows in {"train": sequences, "valid": sequences[:2], "test": sequences[:2]}.items():
        records = [
            {"primary": one, "stability_score": [float(number)]} for number, one in enumerate(rows)
        ]
        (folder / f"stability_{ending}.json").write_text(json.dumps(records))
    return prepare_task(folder / "store", "stability", *read_task_files("stability", folder))


def variants(num: int, start: str = "") -> list[str]:
    """Sequences of 40 residues that differ anywhere, behind the same start."""
    rng = np.random.default_rng(0)
    return [start + "".join(rng.choice(list("ACDEFGHIKL"), 40)) for _ in range(num)]


@pytest.mark.parametrize("name", ["sppt_protein", "finetune"])
def test_proteins_are_counted_by_their_residues(
    name: str, tiny_store: Store, tiny_task: Store
) -> None:
    store = {"sppt_protein": tiny_store, "finetune": tiny_task}[name]
    setting = {"sppt_protein": "input.max_length", "finetune": "encoder.max_length"}[name]
    lengths = np.diff(store.indptr_N1)
    limit = int(np.median(lengths))
    config = tiny_config(name, **{setting: limit + 1})  # TAPE's vocabulary has one special token
    special = METHODS[name].build(config, store.path).model
    special = getattr(special, "encoder", special).vocabulary.num_special_per_sequence
    (found,) = METHODS[name].input_lengths(config, store)
    limit = limit + 1 - special
    assert (found.limit, found.longest, found.num_rows) == (limit, lengths.max(), len(lengths))
    assert found.num_cut == found.num_counted - int((lengths <= limit).sum()) > 0
    assert f"{found.num_cut:,} of {len(lengths):,}" in found.remark
    roomy = tiny_config(name, **{setting: int(lengths.max()) + 2})
    (found,) = METHODS[name].input_lengths(roomy, store)
    assert (found.num_cut, found.remark) == (0, "")


def test_a_window_is_no_cut_and_is_said_all_the_same(tiny_store: Store) -> None:
    config = tiny_config("sppt_protein", **{"input.max_length": 20, "input.crop": "random"})
    (found,) = METHODS["sppt_protein"].input_lengths(config, tiny_store)
    assert (
        "cut to a window of" in found.remark and f"the longest has {found.longest}" in found.remark
    )


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_counted_by_the_tokens_that_training_reads(
    name: str, request: pytest.FixtureRequest
) -> None:
    """A row that is cut fills the limit where the system reads it; one that is not has what was counted."""
    store = request.getfixturevalue(CASES[name].store)
    config = tiny_config(name, **TEXTS[name])
    found = METHODS[name].input_lengths(config, store)
    assert len({one.name for one in found}) == len(found)  # MLflow keeps one metric of each name
    assert all(re.fullmatch(r"[\w\-. /]+", one.name) for one in found)
    assert all(one.num_cut <= one.num_counted == one.num_rows for one in found)
    assert any(one.num_cut for one in found)
    assert all((one.longest > one.limit) == bool(one.remark) for one in found)
    system = METHODS[name].build(config, store.path)
    token_lengths = np.concatenate(
        [np.diff(system.collate(step, 0, 1)["indptr_R1"]) for step in range(6)]
    )
    read = [one for one in found if one.unit == "tokens"]
    assert token_lengths.max() == max(
        min(one.longest, one.limit) for one in read if "set" not in one.name
    )
    roomy = tiny_config(name, **dict.fromkeys(TEXTS[name], 250))
    assert not any(
        one.remark for one in METHODS[name].input_lengths(roomy, store) if "names" not in one.name
    )


def test_a_large_corpus_is_sampled_and_the_remark_says_so(
    tiny_citations: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "MAX_COUNTED_TEXTS", 16)
    config = tiny_config("sppt_mag", **{"encoder.max_length": 5})
    (found,) = METHODS["sppt_mag"].input_lengths(config, tiny_citations)
    assert (found.num_counted, found.num_rows) == (16, 64)
    assert "16 of 16 sampled (64 in all) cut at 5 of" in found.remark


def test_rows_that_the_cut_makes_equal_are_counted_and_most_of_them_refused(tmp_path: Path) -> None:
    """265 residues read as 64: with 70 residues before each sequence, all variants would be one input."""
    config = tiny_config("finetune", **{"encoder.max_length": 65})
    entry = METHODS["finetune"]
    some = stability(tmp_path / "some", [*variants(8), *variants(2, "M" * 70)])
    (found,) = entry.input_lengths(config, some)
    assert (found.num_cut, found.num_equal, found.num_distinct) == (2, 2, 10)
    assert found.remark.endswith("; 2 of them no longer differ: raise encoder.max_length")
    entry.check(config, some)
    all_of_them = stability(tmp_path / "all", variants(10, "M" * 70))
    with pytest.raises(
        ConfigError, match=r"encoder.max_length is 65: sequences are cut at \d+ of 110 .* 10 of 10"
    ):
        entry.check(config, all_of_them)
    entry.check(override_all(config, {"encoder.max_length": 112}), all_of_them)
    # Where the encoder is the limit, a longer setting changes nothing, and is no advice.
    (cut,) = entry.input_lengths(config, all_of_them)
    limited = replace(cut, setting_value=512, num_positions=41, limit=39)
    message = (
        r"the encoder reads at most 41 tokens: sequences are cut at 39 .* Choose an encoder with"
    )
    with pytest.raises(ConfigError, match=message) as caught:
        check_rows_differ(limited)
    assert "max_length" not in str(caught.value)
    assert limited.remark.endswith("no longer differ: choose an encoder with more positions")


def test_texts_that_the_cut_makes_equal_are_refused(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        texts = [f"the same words here and then number {number} {split}" for number in range(6)]
        rows = [
            json.dumps({"text": text, "label": "ab"[number % 2]})
            for number, text in enumerate(texts)
        ]
        (tmp_path / f"{split}.txt").write_text("\n".join(rows))
    store = prepare_task(tmp_path / "store", "scicite", *read_task_files("scicite", tmp_path))
    with pytest.raises(ConfigError, match="18 of 18 different ones are equal to another"):
        METHODS["finetune"].check(tiny_config("finetune", **{"encoder.max_length": 6}), store)
    METHODS["finetune"].check(tiny_config("finetune", **{"encoder.max_length": 16}), store)


def test_a_length_that_an_export_cannot_read_is_refused_where_it_is_explicit(
    tmp_path: Path,
) -> None:
    """``finetune --init`` with an encoder of 64 positions: single requests are refused, all else is reported."""
    store = stability(tmp_path / "task", variants(8, "ACDE" * 10))
    small = METHODS["finetune"].build(
        tiny_config("finetune", **{"encoder.max_length": 64}), store.path
    )
    export = small.export(tmp_path / "export", {})
    config = tiny_config("finetune", **{"encoder.source": str(export), "encoder.max_length": 82})
    request = RunSpec(
        method="finetune", config=config, store=store.path, name="tuned", runs=tmp_path / "runs"
    )
    assert check_spec(request) == store.digest
    (found,) = METHODS["finetune"].input_lengths(config, store)
    assert (found.num_positions, found.setting_value, found.longest) == (64, 82, 80)
    assert found.remark.startswith(f"sequences: 12 of 12 cut at {found.limit} of 80 residues")
    explicit = replace(request, explicit=frozenset({"encoder.max_length"}))
    with pytest.raises(
        ConfigError, match="encoder.max_length: got 82, and the encoder reads at most 64 tokens"
    ):
        check_spec(explicit)
    check_spec(replace(explicit, config=override_all(config, {"encoder.max_length": 64})))


def test_a_text_export_says_what_it_reads_without_its_weights(
    tiny_citations: Store, tmp_path: Path
) -> None:
    name = "sppt_mag"
    system = METHODS[name].build(tiny_config(name), tiny_citations.path)
    export = system.export(tmp_path / "export", {})
    config = tiny_config(name, **{"encoder.source": str(export), "encoder.max_length": 512})
    (found,) = METHODS[name].input_lengths(config, tiny_citations)
    assert (
        found.num_positions
        == METHODS[name].build(config, tiny_citations.path).model.max_tokens
        == 32
    )
    request = RunSpec(
        method=name, config=config, store=tiny_citations.path, name="on", runs=tmp_path / "runs"
    )
    check_spec(request)
    with pytest.raises(
        ConfigError, match="encoder.max_length: got 512, and the encoder reads at most 32 tokens"
    ):
        check_spec(replace(request, explicit=frozenset({"encoder.max_length"})))


def test_a_protein_encoder_that_reads_less_than_the_inputs_is_refused_by_the_driver(
    tiny_store: Store, tmp_path: Path
) -> None:
    name = "sppt_protein"
    export = METHODS[name].build(tiny_config(name), tiny_store.path).export(tmp_path / "export", {})
    config = tiny_config(name, **{"encoder.source": str(export), "input.max_length": 80})
    with pytest.raises(
        ConfigError, match="input.max_length is 80, but the encoder .* reads at most 64 tokens"
    ):
        METHODS[name].check(config, tiny_store)
