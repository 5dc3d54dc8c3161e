"""Each JSON file of a run cut short, zeroed or missing: the run goes on as it was, or is refused; nothing else."""
