"""What a sweep's driver does while Ray Tune works: MLflow's child runs, the order of trials, a line for each."""
