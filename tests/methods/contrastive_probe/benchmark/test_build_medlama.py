"""What a benchmark is made of, by hand-written rows; and the way from a synthetic UMLS to a benchmark and back."""
