"""Transformers that methods share: loading, tokens, pooling, export."""
