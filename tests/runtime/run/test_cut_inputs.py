"""A run whose encoder reads less than its rows have: it is printed, and kept in the folder, MLflow and the table."""
