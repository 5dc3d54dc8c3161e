"""Pre-train an encoder of entity pairs: ``raybio train mtb_pretrain`` as a script."""

from launch import main

if __name__ == "__main__":
    main("train", "mtb_pretrain")
