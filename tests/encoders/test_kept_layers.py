"""`encoder.num_layers_kept` against the checkpoint that it cuts, before anything is started."""

from pathlib import Path

import pytest

from raybio.core.config import load, override_all
from raybio.core.errors import ConfigError
from raybio.encoders import text_checkpoint
from raybio.methods import METHODS
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.training.loop import fit
from tests.encoders.tiny_text import tiny_model, tiny_tokenizer
from tests.methods.conformance_cases import CASES, tiny_config
from tests.paths import ROOT

DOCS = ROOT / "docs" / "results" / "configs"
CUT = [
    name
    for name, entry in METHODS.items()
    if "num_layers_kept" in type(entry.config().encoder).model_fields
]
SMALL = {
    "encoder.max_length": 64,
    "schedule.max_steps": 1,
    "schedule.evaluate_every_steps": 0,
    "plan.global_batch_rows": 4,
}


@pytest.fixture
def two_layers(tmp_path: Path) -> str:
    from transformers import BertModel

    tokenizer = tiny_tokenizer()
    sizes = tiny_model("bert", len(tokenizer)).config
    # The longest sentence of the tests has 93 tokens.
    sizes.max_position_embeddings = 128
    BertModel(sizes).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return str(tmp_path)


def test_these_systems_have_a_number_of_kept_layers() -> None:
    assert {"mtb_pretrain", "relation_finetune", "biostransformers", "relation_graphs"} < set(CUT)


@pytest.mark.parametrize("name", CUT)
def test_more_layers_than_the_checkpoint_has_are_refused_before_its_weights_are_read(
    name: str, two_layers: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = request.getfixturevalue(CASES[name].store)
    monkeypatch.delattr(text_checkpoint, "load_weights")
    sizes = {"encoder.source": two_layers, "encoder.max_length": 128, "encoder.num_layers_kept": 2}
    fits = override_all(tiny_config(name), sizes)
    METHODS[name].check(fits, store)
    with pytest.raises(
        ConfigError, match="num_layers_kept is 3, and .* has 2 layers; want at most as many"
    ):
        METHODS[name].check(override_all(fits, {"encoder.num_layers_kept": 3}), store)


def test_the_settings_of_the_guide_fine_tune_the_model_that_those_of_the_guide_pre_train(
    two_layers: str, tiny_documents: DocumentStore, tmp_path: Path
) -> None:
    from transformers import BertConfig, BertModel

    source = tmp_path / "six layers"
    sizes = BertConfig.from_pretrained(two_layers)
    sizes.num_hidden_layers = 6
    BertModel(sizes).save_pretrained(source)
    tiny_tokenizer().save_pretrained(source)
    small = SMALL | {"encoder.source": str(source)}
    mtb, tuning = METHODS["mtb_pretrain"], METHODS["relation_finetune"]
    pre_training = override_all(load(mtb.config, DOCS / "mtb_minilm.yaml", mtb.config()), small)
    mtb.check(pre_training, tiny_documents)
    system = mtb.build(pre_training, tiny_documents.path)
    for _ in fit(system, pre_training):
        pass
    system.export(tmp_path / "export", {})

    config = override_all(
        load(tuning.config, DOCS / "relations_minilm.yaml", tuning.config()),
        SMALL | {"encoder.source": str(tmp_path / "export")},
    )
    assert config.encoder.num_layers_kept == pre_training.encoder.num_layers_kept == 3
    tuning.check(config, tiny_documents)
    tuned = tuning.build(config, tiny_documents.path)
    assert tuned.model.text.model.config.num_hidden_layers == 3
    with pytest.raises(ConfigError, match="num_layers_kept is 4, and .* has 3 layers"):
        tuning.check(override_all(config, {"encoder.num_layers_kept": 4}), tiny_documents)
