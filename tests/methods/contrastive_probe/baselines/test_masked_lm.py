"""Masked language models of five architectures, against the whole forward pass of transformers."""
