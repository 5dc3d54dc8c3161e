"""Loading by hub id, from a server on the loopback that lays files out as the hub does."""
