"""The losses of relation-aware embeddings against their printed form."""
