"""Structure-inducing pre-training (SPPT) of a protein encoder on interaction graphs.

Trains, compares with language modelling alone (λ = 0), and shows the table of link retrieval.

Without a store it uses the embedded miniature tree of life. The same command resumes the run.
"""

from raybio.cli.train import training_job

if __name__ == "__main__":
    training_job("sppt_protein", __doc__ or "")
