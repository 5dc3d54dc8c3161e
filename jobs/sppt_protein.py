"""Train SPPT on proteins: ``raybio train sppt_protein`` as a script."""

from launch import main

if __name__ == "__main__":
    main("train", "sppt_protein")
