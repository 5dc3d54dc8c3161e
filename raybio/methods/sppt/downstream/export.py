"""Export a fine-tuned model: an encoder that others can load, and its head next to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args

from safetensors.torch import save_file

from raybio.core.errors import ConfigError
from raybio.core.records import export_record, write_record
from raybio.encoders.export import export_text_encoder
from raybio.encoders.export_files import export_folder
from raybio.encoders.model_card import predict_usage
from raybio.encoders.text import TextEncoder
from raybio.methods.sppt.downstream.config import THRESHOLD, HeadKind, Labels
from raybio.methods.sppt.downstream.encoder import TaskModel
from raybio.methods.sppt.proteins.encoder import ProteinEncoder
from raybio.methods.sppt.proteins.export import export_encoder

HEAD_SETTINGS = "head.json"
HEAD_WEIGHTS = "head.safetensors"

MAX_NAMED_CLASSES = 20
"""Classes that a model card names; ``head.json`` has them all."""

_EXAMPLES = {
    True: ["Asthma in early life.", "Hypersensitivity"],
    False: ["MKTAYIAKQR", "MVLSPADK"],
}


class TaskHead(NamedTuple):
    """The outputs of a head, as its export records them.

    Attributes:
        task: name of the task.
        labels: "class", "class_set" or "number" of an input, or "residues" for a class of each
            residue.
        kind: as ``resolve_head`` returns it.
        class_names: names of the classes, in the order of the scores; none for a number.
        center: a number is its score times ``scale``, plus ``center``.
        scale: see ``center``.
        on_texts: whether inputs are texts; otherwise they are proteins.
        max_length: tokens of an input that training read, special ones included.
        threshold: a predicted set has the classes of this probability or more.
    """

    task: str
    labels: Labels
    kind: HeadKind
    class_names: tuple[str, ...]
    center: float
    scale: float
    on_texts: bool
    max_length: int
    threshold: float = THRESHOLD

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the head of an export.

        Raises:
            ConfigError: if its record is damaged or of another version.
        """
        with export_record(folder / HEAD_SETTINGS, "task head", "finetune") as content:
            head = cls(**content)
            if head.labels not in get_args(Labels):
                wanted = ", ".join(get_args(Labels))
                raise ConfigError(f"got labels {head.labels!r}, want one of {wanted}")
            return head._replace(
                class_names=tuple(map(str, head.class_names)),
                center=float(head.center),
                scale=float(head.scale),
                threshold=float(head.threshold),
            )

    @property
    def description(self) -> str:
        """A sentence or two for the model card."""
        if self.labels == "number":
            return f"A {self.kind} head predicts the number of the task {self.task}."
        names = ", ".join(self.class_names[:MAX_NAMED_CLASSES])
        if len(self.class_names) > MAX_NAMED_CLASSES:
            names += f" and {len(self.class_names) - MAX_NAMED_CLASSES:,} more in {HEAD_SETTINGS}"
        if self.labels == "class_set":
            return (
                f"A {self.kind} head predicts which classes an input has in the task {self.task}: "
                f"those of a probability of at least {self.threshold:g}, of "
                f"{len(self.class_names):,}: {names}."
            )
        of = "each residue" if self.labels == "residues" else "an input"
        return (
            f"A {self.kind} head predicts the class of {of} in the task {self.task}, one of "
            f"{len(self.class_names):,}: {names}."
        )


def export_task_model(
    model: TaskModel, head: TaskHead, directory: str | Path, *, card: Mapping[str, Any]
) -> Path:
    """Write the encoder for other programs, and the head; an older export is replaced.

    Args:
        model: what to export; not changed.
        head: what it predicts.
        directory: the folder to write.
        card: see ``export_text_encoder``.

    Returns:
        ``directory``.
    """
    usage = predict_usage(_EXAMPLES[head.on_texts])
    card = {"Predict": f"{head.description}\n\n{usage}", **card}
    with export_folder(Path(directory)) as folder:
        if isinstance(model.encoder, ProteinEncoder):
            export_encoder(model.encoder, folder, card=card, max_tokens=head.max_length)
        else:
            assert isinstance(model.encoder, TextEncoder)
            export_text_encoder(model.encoder, folder, card=card)
        weights = {
            name: weight.detach().cpu().contiguous()
            for name, weight in model.head.state_dict().items()
        }
        save_file(weights, folder / HEAD_WEIGHTS)
        write_record(folder / HEAD_SETTINGS, "task head", head._asdict())
    return Path(directory)
