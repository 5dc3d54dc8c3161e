"""The commands ``raybio train METHOD``."""

from functools import partial

from raybio.cli.lazy import Entry, LazyGroup, app_of, lazy_app
from raybio.cli.training_command import training_app
from raybio.methods import METHODS

OWN_APPS = {
    "sppt_synthetic": app_of("raybio.cli.synthetic"),
    "finetune": app_of("raybio.cli.finetune"),
    "contrastive_probe": app_of("raybio.cli.contrastive_probe.train"),
}
"""Methods whose command has more options than those of all trainings."""


class Trainings(LazyGroup):
    """The group with a command for each method, including methods of installed packages."""

    entries = {
        name: Entry(method.about, OWN_APPS.get(name, partial(training_app, name)))
        for name, method in METHODS.items()
    }
    former_names = {former: name for name, method in METHODS.items() for former in method.formerly}


app = lazy_app(Trainings, "Train a method, and compare it with variants and rivals.")
