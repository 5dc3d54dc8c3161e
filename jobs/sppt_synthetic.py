"""Train SPPT on synthetic graphs: ``raybio train sppt_synthetic`` as a script."""

from raybio.cli.main import main

if __name__ == "__main__":
    main("train", "sppt_synthetic")
