"""Workers as threads of one process, for what only adds up over workers, or is gathered without gradient."""
