"""Readers, the store, the plan and collation: files in, batches out."""
