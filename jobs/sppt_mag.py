"""Structure-preserving pre-training of a text encoder on articles and their citations.

Without a store it uses embedded simulated citations. The same command resumes the run.
"""

from raybio.cli.train import training_job

if __name__ == "__main__":
    training_job("sppt_mag", __doc__ or "")
