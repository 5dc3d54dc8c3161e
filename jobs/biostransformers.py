"""Train BioSTransformers: ``raybio train biostransformers`` as a script."""

from launch import main

if __name__ == "__main__":
    main("train", "biostransformers")
