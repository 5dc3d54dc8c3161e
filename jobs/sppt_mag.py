"""Structure-preserving pre-training of a text encoder on articles that cite each other: train, compare, show the table.

Without a store it uses embedded simulated citations. The same command again goes on where it stopped.
"""

from raybio.cli.train import training_job

if __name__ == "__main__":
    training_job("sppt_mag", __doc__ or "")
