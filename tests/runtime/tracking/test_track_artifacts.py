"""Files on their way to MLflow: each is sent once, however slow the server; a process that must go waits for none."""
