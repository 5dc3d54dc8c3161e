"""The only package that imports Ray and MLflow. See README.md in this folder."""
