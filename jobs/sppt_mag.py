"""Train SPPT on articles: ``raybio train sppt_mag`` as a script."""

from launch import main

if __name__ == "__main__":
    main("train", "sppt_mag")
