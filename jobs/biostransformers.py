"""BioSTransformers: train a siamese text encoder on (text, MeSH term) pairs.

It is evaluated on the terms of held-out articles. Without a store it uses the embedded simulated
literature. The same command resumes the run.
"""

from raybio.cli.train import training_job

if __name__ == "__main__":
    training_job("biostransformers", __doc__ or "")
