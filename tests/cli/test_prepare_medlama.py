"""The commands that make a benchmark from UMLS and judge the hardness of one."""
