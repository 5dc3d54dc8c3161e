"""Evaluate trained models: ``raybio evaluate`` as a script."""

from launch import main

if __name__ == "__main__":
    main("evaluate")
