"""Fine-tune an encoder on a downstream task: finetune.py TASK --data FILES --init MODEL.

TASK: remote_homology, secondary_structure, stability, fluorescence, paper_field, scicite, acl_arc.
Several, separated by commas and each with a --data, end in one table. docs/methods/sppt.md lists
the files of each task. The settings are the paper's for the task; --set changes them. Without
a task it trains on embedded simulated folds. --compare encoder.source=A,B adds encoders to the
table, --seeds 3 their spread.
"""

import sys

from raybio.cli.app import run_app
from raybio.cli.finetune import with_tasks
from raybio.cli.train import training_job


def train() -> None:
    """Prepare the stores of the tasks, and train."""
    sys.argv[1:], parts = with_tasks(sys.argv[1:])
    training_job("finetune", __doc__ or "", parts)


if __name__ == "__main__":
    run_app(train)
