"""Fine-tune an encoder of entity pairs on labeled relations: MCCL, cross entropy or SupCon.

It is evaluated on relations of other documents. Without a store it uses the embedded simulated
documents. The same command resumes the run.
"""

from raybio.cli.train import training_job

if __name__ == "__main__":
    training_job("relation_finetune", __doc__ or "")
