"""Encoder-decoders of T5's and BART's kind, tiny and random, and what is left of what they write."""
