"""A small probe benchmark with the fields of ``raybio.methods.contrastive_probe.benchmark.medlama.ProbeBenchmark``, drawn at random."""
