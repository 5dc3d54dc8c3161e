"""Check what could go wrong before anything starts: ``raybio preflight`` as a script."""

from launch import main

if __name__ == "__main__":
    main("preflight")
