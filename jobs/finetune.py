"""Fine-tune an encoder on a downstream task (`finetune.py TASK --data FILES --init MODEL`), judge it on dev and test.

TASK: remote_homology, secondary_structure, stability, fluorescence, paper_field, scicite, acl_arc; several by comma,
each with a --data, end in one table. --data: the task's files (docs/structure_preserving.md says which); the settings
are the paper's for it, and --set changes them. Without a task it trains on embedded simulated folds. --compare
encoder.source=A,B puts more encoders into the table, --seeds 3 their spread.
"""

import sys

from raybio.cli.app import run_app


def main() -> None:
    """Prepare what was given, and train."""

    def train() -> None:
        # Only now: this imports torch and transformers, which takes seconds.
        from raybio.experiments.downstream_tasks import with_tasks

        sys.argv[1:], parts = with_tasks(sys.argv[1:])
        from raybio.cli.train import training_job

        training_job("finetune", __doc__ or "", parts)

    run_app(train)


if __name__ == "__main__":
    main()
