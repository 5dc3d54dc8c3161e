"""`encoder.num_layers_kept` against the checkpoint that it cuts, before anything is started."""
