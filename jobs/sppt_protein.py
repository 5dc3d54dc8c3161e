"""Structure-preserving pre-training of a protein encoder on interaction graphs.

Without a store it uses the embedded miniature tree of life. The same command resumes the run.
"""

from raybio.cli.train import training_job

if __name__ == "__main__":
    training_job("sppt_protein", __doc__ or "")
