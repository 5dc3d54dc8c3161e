"""What a sweep tries next, and what a trial tells; without a cluster."""
