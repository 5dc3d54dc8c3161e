"""The table of methods. Importing it reads their settings, and neither torch nor transformers."""

from importlib.metadata import entry_points

from raybio.methods.biostransformers import method as biostransformers
from raybio.methods.contrastive_probe import method as contrastive_probe
from raybio.methods.mtb_mccl.mccl import method as mccl
from raybio.methods.mtb_mccl.mtb import method as mtb
from raybio.methods.relation_graphs import method as relation_graphs
from raybio.methods.sppt.articles import method as sppt_articles
from raybio.methods.sppt.downstream import method as sppt_downstream
from raybio.methods.sppt.proteins import method as sppt_proteins
from raybio.methods.sppt.synthetic import method as sppt_synthetic
from raybio.training.method import Method

ENTRY_POINTS = "raybio.methods"
"""Entry points by which installed packages add methods: ``NAME = "package.method:METHOD"``."""

METHODS: dict[str, Method] = {
    "sppt_protein": sppt_proteins.METHOD,
    "sppt_mag": sppt_articles.METHOD,
    "sppt_synthetic": sppt_synthetic.METHOD,
    "finetune": sppt_downstream.METHOD,
    "biostransformers": biostransformers.METHOD,
    "contrastive_probe": contrastive_probe.METHOD,
    "mtb_pretrain": mtb.METHOD,
    "relation_finetune": mccl.METHOD,
    "relation_graphs": relation_graphs.METHOD,
}
"""Name of each method -> its description."""

for _entry in entry_points(group=ENTRY_POINTS):
    METHODS.setdefault(_entry.name, _entry.load())
