"""Fine-tune an encoder on downstream tasks: ``raybio train finetune`` as a script."""

from launch import main

if __name__ == "__main__":
    main("train", "finetune")
