"""Fine-tune an encoder on downstream tasks: ``raybio train finetune`` as a script."""

from raybio.cli.main import main

if __name__ == "__main__":
    main("train", "finetune")
