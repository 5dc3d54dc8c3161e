"""Fine-tune an encoder of entity pairs on labelled relations (MCCL, cross entropy, SupCon), and judge it on others.

Without a store it uses the embedded simulated documents. The same command again goes on where it
stopped.
"""

from raybio.cli.train import training_job

if __name__ == "__main__":
    training_job("relation_finetune", __doc__ or "")
