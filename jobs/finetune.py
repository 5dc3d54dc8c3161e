"""Fine-tune an encoder on a downstream task (`finetune.py TASK --data FILES --init MODEL`), judge it on dev and test.

TASK: remote_homology, secondary_structure, stability, fluorescence, paper_field, scicite, acl_arc; several by comma,
each with a --data, end in one table. --data: the task's files (docs/methods/sppt.md says which); the settings
are the paper's for it, and --set changes them. Without a task it trains on embedded simulated folds. --compare
encoder.source=A,B puts more encoders into the table, --seeds 3 their spread.
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
