"""Train SPPT on articles: ``raybio train sppt_mag`` as a script."""

from raybio.cli.main import main

if __name__ == "__main__":
    main("train", "sppt_mag")
