"""MTB, improved: pre-train an encoder of entity pairs on documents with annotated entities.

Without a store it uses the embedded simulated documents. The same command resumes the run.
"""

from raybio.cli.train import training_job

if __name__ == "__main__":
    training_job("mtb_pretrain", __doc__ or "")
