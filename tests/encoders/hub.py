"""A server on the loopback that lays files out as the hub does."""
