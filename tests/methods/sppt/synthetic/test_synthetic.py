"""The synthetic graphs of SPPT's experiments."""
