"""Whether a task fits a graph, beside shuffled labels; and the command that says so."""
