"""Hand-written citations in the layouts of NLM's files."""
