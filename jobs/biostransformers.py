"""Train BioSTransformers: ``raybio train biostransformers`` as a script."""

from raybio.cli.main import main

if __name__ == "__main__":
    main("train", "biostransformers")
