"""Pre-train an encoder of entity pairs on documents whose entities are known (MTB, improved).

Without a store it uses the embedded simulated documents. The same command again goes on where it
stopped.
"""

from raybio.cli.train import training_job

if __name__ == "__main__":
    training_job("mtb_pretrain", __doc__ or "")
