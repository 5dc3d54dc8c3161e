"""The cluster's tracking: an ``mlflow server`` on PostgreSQL, with several drivers that write at the same time."""
