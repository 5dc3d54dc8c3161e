"""The runtime floor: the only home of Ray and MLflow. See README.md in this folder."""
