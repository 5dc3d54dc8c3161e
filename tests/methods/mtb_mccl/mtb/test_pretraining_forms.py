"""What stands in place of L_rel: binary classification of pairs, and MCCL over entity pairs."""
