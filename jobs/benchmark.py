"""Benchmark models on all tasks of a suite: ``raybio benchmark`` as a script."""

from launch import main

if __name__ == "__main__":
    main("benchmark")
