"""Ray clusters of several nodes on this machine: each node is a `ray start --block` with an address and processes of
its own, and every one wants the cluster's token.
"""
