"""Compare runs: ``raybio compare`` as a script."""

from launch import main

if __name__ == "__main__":
    main("compare")
