"""What ``train`` refuses before a cluster is started or anything is recorded, and the status that it gives."""
