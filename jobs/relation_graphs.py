"""Train word embeddings whose neighbors predict entities and relations: CLDR, CLGS, CLNER.

Without a store it uses the embedded simulated sentences. The same command resumes the run.
"""

from raybio.cli.train import training_job

if __name__ == "__main__":
    training_job("relation_graphs", __doc__ or "")
