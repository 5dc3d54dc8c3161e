"""Train relation-aware embeddings of words (CLDR, CLGS, CLNER), and find entities and relations by neighbours.

Without a store it uses the embedded simulated sentences. The same command again goes on where it stopped.
"""

from raybio.cli.train import training_job

if __name__ == "__main__":
    training_job("relation_graphs", __doc__ or "")
