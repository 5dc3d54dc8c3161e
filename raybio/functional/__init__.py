"""Pure functions of tensors and arrays: losses, rankings, masks, hashes."""
