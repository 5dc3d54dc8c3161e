"""A driver of its own for test_multi_node.py: a run or a sweep with steps so long that a node can go in the middle.

``slow_driver.py run|sweep STORE FOLDER``; FOLDER holds config.yaml, and a sweep's space.yaml.
"""
