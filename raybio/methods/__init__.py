"""The table of methods. Importing it reads their settings, and neither torch nor transformers."""

import logging
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from raybio.core.errors import ConfigError
from raybio.core.text import did_you_mean
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


def present_name(name: str) -> str:
    """Return the present name of a method; an unknown one as it is."""
    return next((method.name for method in METHODS.values() if method.has_name(name)), name)


def method_named(name: str) -> Method:
    """Return a method by its name, or by a former one.

    Raises:
        ConfigError: if there is none of that name.
    """
    name = present_name(name)
    if name not in METHODS:
        raise ConfigError(
            f"{name!r} is no method; want one of {', '.join(METHODS)}.{did_you_mean(name, METHODS)}"
        )
    return METHODS[name]


def add_installed(methods: dict[str, Method], entries: Iterable[EntryPoint]) -> None:
    """Add the methods of entry points; one that is unusable is reported and left out.

    raybio's own methods work whatever other packages are installed.
    """
    for entry in entries:
        try:
            method = entry.load()
            if not isinstance(method, Method):
                raise TypeError(f"want a raybio.training.method.Method, got {method!r:.60}")
            if method.name != entry.name:
                raise ValueError(f"the entry point is named otherwise than its {method.name!r}")
            if entry.name in methods:
                raise ValueError("there is a method of that name")
        except Exception as error:
            logging.getLogger(__name__).warning(
                "the method %s (entry point %s) is left out: %s: %s",
                entry.name,
                entry.value,
                type(error).__name__,
                error,
            )
            continue
        methods[entry.name] = method


add_installed(METHODS, entry_points(group=ENTRY_POINTS))
