"""MCCL over labelled pairs: the loss with any number of proxies, against loops."""
