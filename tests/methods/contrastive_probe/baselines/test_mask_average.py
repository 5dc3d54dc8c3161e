"""Mask average, restriction to a relation's answers, and the mixture with an encoder, against loops."""
