"""Builds Headway's images, with Docker if an engine runs. Otherwise it uses mmdebstrap and buildah.

    build.py base host operator sandbox     small images
    build.py --all                          all images that a cluster pulls; rollout and trainer are gigabytes
    build.py examples/sop-quickstart        an environment's own image, on top of sandbox
    build.py --load host sandbox            and load them into this machine's cluster
    build.py --all --push --prefix registry.example.com/headway --tag 1
                                            and push them to a registry; log in to it first

It prints one line for each image: its name and, unless it is pushed, a tab and the path of its OCI archive.
Archives are cached by a hash of the image's inputs, so a second build takes no time. Docker and buildah build
from the same Dockerfiles. Standard library only.
"""

from __future__ import annotations

import sys

from headway_images.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], __doc__))
