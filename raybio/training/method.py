"""The description of a published method, for the layers above the methods."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from raybio.core.location import Location
from raybio.core.recipes import Recipe, recipes_of
from raybio.core.table_layout import TableLayout
from raybio.training.bucket_source import fetch_encoder
from raybio.training.settings import TrainingConfig

if TYPE_CHECKING:
    from raybio.core.interfaces import System
    from raybio.encoders.config import Pooling
    from raybio.training.embedding_model import EmbeddingModel, InputEmbedder
    from raybio.training.predictor import Predictor


class PartEncoder(NamedTuple):
    """An encoder that embeds parts of an input in their context, never whole inputs.

    Attributes:
        settings: name of the file in its export that only such encoders have.
        parts: what it embeds, in the plural.
        module: dotted path of the module that defines ``read_embedder``.
    """

    settings: str
    parts: str
    module: str

    def read(self, folder: Path) -> "InputEmbedder":
        """Read how the encoder in an export of this kind embeds.

        Raises:
            ConfigError: if the folder is malformed.
        """
        return importlib.import_module(self.module).read_embedder(folder)


class PredictorModule(NamedTuple):
    """The module that computes a method's predictions for new inputs.

    Attributes:
        record: name of the file in its export that only models with such a head have.
        module: dotted path of the module that defines ``read_predictor``.
        document_suffixes: suffixes of its predictor's ``document_writers``.
    """

    record: str
    module: str
    document_suffixes: tuple[str, ...] = ()


C = TypeVar("C", bound=TrainingConfig)

MetricsByStep = Mapping[int, Mapping[str, float]]
"""Step -> name of a metric -> value, as a run logs them."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A published method: its settings, and the module that wires it over a store.

    Creating or reading a ``Method`` imports no torch, and neither does ``store``. ``system`` is
    imported on first use of ``check``, ``input_lengths``, ``build`` or ``prepare_demo``. An
    encoder's source in a bucket is fetched before.

    Attributes:
        name: key in ``raybio.methods.METHODS``; also the name of its command ``raybio train NAME``
            and search space.
        formerly: its former names, the oldest first. Commands, search spaces and records that have
            them are read.
        about: what it trains, in a sentence or two: the first lines of its help.
        config: class of its settings; the defaults are the paper's.
        demo: settings for the built-in default corpus on a laptop.
        first_settings: paths of the settings that users change first; shown in its help.
        system: dotted path of the module that defines ``DEMO_CORPUS``, ``check``,
            ``input_lengths``, ``steps_per_epoch`` and ``build``, and optionally
            ``write_step_selection`` and ``published_recipe``.
        store_class: dotted path of the class of the stores that it trains on.
        table: how the scores of final evaluations are shown.
        step_metrics: evaluation metrics that comparisons plot over steps.
        comparison: setting and values that a run is compared with by default, as ``--compare``
            takes them.
        part_encoder: how to recognize exports whose encoder embeds parts of inputs; None if it
            embeds whole inputs.
        embedding: dotted path of the module that defines ``read_embedding_model``; None for
            encoders of texts.
        predictor: how to recognize and read exports with a head; None if it trains no head.
        epoch_rows: noun for the rows of an epoch, in the plural.
        citation: the paper, as Markdown, for model cards; empty if there is none.
    """

    name: str
    about: str
    config: type[TrainingConfig]
    demo: TrainingConfig
    system: str
    store_class: str
    table: TableLayout
    step_metrics: tuple[str, ...]
    first_settings: tuple[str, ...] = ()
    comparison: str | None = None
    part_encoder: PartEncoder | None = None
    embedding: str | None = None
    predictor: PredictorModule | None = None
    epoch_rows: str = "rows"
    citation: str = ""
    formerly: tuple[str, ...] = ()

    def has_name(self, name: object) -> bool:
        """Return whether this is its name or a former one."""
        return name == self.name or name in self.formerly

    @property
    def first_name(self) -> str:
        """Its oldest name, for names that a new one must not change.

        These are MLflow's experiment, where runs are found, and runs without ``--name``.
        """
        return (*self.formerly, self.name)[0]

    @property
    def store(self) -> type[Any]:
        """The class of the stores that it trains on."""
        module, _, name = self.store_class.rpartition(".")
        return getattr(importlib.import_module(module), name)

    def check(self, config: Any, store: Any) -> None:
        """Refuse settings that do not fit the store, without loading weights.

        Raises:
            RaybioError: the error with which ``build`` would end.
        """
        fetch_encoder(config, again=True)
        self._module.check(config, store)

    def input_lengths(self, config: Any, store: Any) -> list[Any]:
        """Count the rows that are truncated, without loading weights."""
        fetch_encoder(config)
        return self._module.input_lengths(config, store)

    @property
    def recipes(self) -> dict[str, Recipe]:
        """The recipes that are shipped with the method, by name."""
        return recipes_of(self.system.rpartition(".")[0])

    def published_recipe(self, config: Any, store: Any) -> str | None:
        """Return the recipe with the published settings of a store and configuration.

        Return None if it is ambiguous or there is none. Recipes of methods without
        ``published_recipe`` fit all stores of the method.
        """
        choose = getattr(self._module, "published_recipe", None)
        return None if choose is None else choose(config, store)

    def in_steps(self, config: C, store: Any) -> C:
        """Return settings with epochs converted to steps; see ``ScheduleConfig.in_steps``.

        Raises:
            RaybioError: the error with which ``build`` would end.
        """
        if not config.schedule.has_epochs:
            return config
        schedule = config.schedule.in_steps(self._module.steps_per_epoch(config, store))
        return config.model_copy(update={"schedule": schedule})

    def build(self, config: Any, store: str | Location) -> "System":
        """Wire the method over the store at a path."""
        fetch_encoder(config)
        return self._module.build(config, store)

    def prepare_demo(self, folder: str | Path) -> Path:
        """Return the path of the built-in default corpus, prepared on the first call."""
        return self._module.DEMO_CORPUS.prepare(folder).path

    def write_step_selection(
        self, runs_by_label: Mapping[str, Mapping[str, MetricsByStep]], metric: str, out: Path
    ) -> list[Path]:
        """Write which training steps the method's label-free rules select; return the files.

        Methods without such rules write nothing.

        Args:
            runs_by_label: label -> name of a run -> its evaluation metrics by step.
            metric: the metric by which the selection is evaluated.
            out: an existing folder.
        """
        write = getattr(self._module, "write_step_selection", None)
        return [] if write is None else write(runs_by_label, metric, out)

    def read_embedding_model(
        self, folder: Path, pooling: "Pooling | None"
    ) -> "EmbeddingModel | None":
        """Read how an encoder of non-text inputs embeds; None if the folder holds another encoder.

        Raises:
            ConfigError: if the folder is malformed, or its pooling is neither stated nor given.
        """
        if self.embedding is None:
            return None
        return importlib.import_module(self.embedding).read_embedding_model(folder, pooling)

    def read_predictor(self, folder: Path) -> "Predictor | None":
        """Read the head in an export, without its weights; None if it has no head of this method.

        Raises:
            ConfigError: if its records are damaged, or it has been trained for something else.
        """
        if self.predictor is None or not (folder / self.predictor.record).is_file():
            return None
        return importlib.import_module(self.predictor.module).read_predictor(folder)

    @property
    def _module(self) -> ModuleType:
        return importlib.import_module(self.system)
