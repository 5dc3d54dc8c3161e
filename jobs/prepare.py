"""Prepare a store from source files: ``raybio prepare`` as a script."""

from launch import main

if __name__ == "__main__":
    main("prepare")
