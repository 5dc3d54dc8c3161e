"""BioSTransformers: a siamese text encoder tuned on (text, MeSH term) pairs; judged on the terms of held-out articles.

Without a store it uses the embedded simulated literature. The same command again goes on where it stopped.
"""

from raybio.cli.train import training_job

if __name__ == "__main__":
    training_job("biostransformers", __doc__ or "")
