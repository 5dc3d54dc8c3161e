"""Pre-train an encoder of entity pairs: ``raybio train mtb_pretrain`` as a script."""

from raybio.cli.main import main

if __name__ == "__main__":
    main("train", "mtb_pretrain")
