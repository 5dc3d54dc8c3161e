"""Link retrieval on samples of test graphs."""
