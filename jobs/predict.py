"""Predict for new inputs: ``raybio predict`` as a script."""

from launch import main

if __name__ == "__main__":
    main("predict")
