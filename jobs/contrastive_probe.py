"""Train Contrastive-Probe: ``raybio train contrastive_probe`` as a script.

With a command such as ``probe`` it is ``raybio evaluate``.
"""

import sys

from launch import main

if __name__ == "__main__":
    has_command = sys.argv[1:] and not sys.argv[1].startswith("-")
    main(*(["evaluate"] if has_command else ["train", "contrastive_probe"]))
