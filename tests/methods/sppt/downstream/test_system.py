"""Fine-tuning on downstream tasks: what the conformance tests, which see classes of sequences alone, leave open."""
