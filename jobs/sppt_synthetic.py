"""Train SPPT on synthetic graphs: ``raybio train sppt_synthetic`` as a script."""

from launch import main

if __name__ == "__main__":
    main("train", "sppt_synthetic")
