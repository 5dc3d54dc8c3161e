import pytest

from raybio.methods.contrastive_probe.baselines.masked_lm import load_masked_lm
from tests.paths import ROOT
from tests.script_process import run_script


@pytest.mark.slow
def test_the_script_trains_a_masked_language_model_that_can_be_requested(tmp_path):
    sentences = tmp_path / "sentences.txt"
    sentences.write_text(
        "".join(f"the patient had fever and cough number {number}\n" for number in range(200))
    )
    sizes = ["--steps", "40", "--layers", "1", "--width", "64", "--vocabulary-size", "200"]
    done = run_script(
        ROOT / "benchmarks" / "tiny_masked_lm.py",
        tmp_path,
        str(sentences),
        "--out",
        str(tmp_path / "lm"),
        *sizes,
    )
    assert done.returncode == 0, done.stderr
    model = load_masked_lm(str(tmp_path / "lm"))
    (log_prob_V,) = model.at_masks(
        model.cloze_tokens(["the patient had [MASK] and cough number 3"], 64)
    )
    assert model.tokenizer.convert_ids_to_tokens(int(log_prob_V.argmax())) == "fever"
