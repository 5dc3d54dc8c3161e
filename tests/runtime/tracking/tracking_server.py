"""A real ``mlflow server`` for tests, and a way to it that can be made to fail."""
