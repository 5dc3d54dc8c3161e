"""What the driver of a sweep does with trackers, without the training, and what MLflow must have in the end."""
