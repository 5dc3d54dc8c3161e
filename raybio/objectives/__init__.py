"""What is minimised: losses over batches, from the functions of the floor below."""
