"""CLDR, CLGS and CLNER, for the table of methods."""

from raybio.core.table_layout import TableLayout
from raybio.methods.relation_graphs.config import DEMO, Config
from raybio.training.method import Method, PartEncoder, PredictorModule

METHOD = Method(
    name="relation_graphs",
    about="Train word embeddings whose neighbors predict entities and "
    "relations: CLDR, CLGS, CLNER.",
    config=Config,
    demo=DEMO,
    first_settings=(
        "model",
        "encoder.source",
        "optim.peak_lr",
        "schedule.max_steps",
        "data.fold",
    ),
    system="raybio.methods.relation_graphs.system",
    store_class="raybio.methods.relation_graphs.store.WordStore",
    table=TableLayout(
        title="Entities and relations",
        measures={
            "ner_f1": "NER",
            "re_f1": "RE (strict)",
            "re_minus_f1": "RE-",
            "probe_f1": "RE- (linear probe)",
        },
        splits={"dev": "validation sentences", "test": "test sentences"},
        chance="every word is an entity of the most frequent type, every two words have the most "
        "frequent relation",
    ),
    step_metrics=("val/re_minus_f1", "val/ner_f1"),
    part_encoder=PartEncoder(
        settings="words.json",
        parts="words",
        module="raybio.methods.relation_graphs.inference.embedding_model",
    ),
    predictor=PredictorModule(
        "word_predictor.json", "raybio.methods.relation_graphs.inference.predict"
    ),
    citation=(
        "Theodoropoulos, Henderson, Coman, Moens. *Imposing Relation Structure in Language-Model "
        "Embeddings Using Contrastive Learning.* CoNLL 2021."
    ),
)
