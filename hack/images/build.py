"""Builds Headway's images. Without Docker or a registry mmdebstrap makes the base and buildah the rest.

    build.py base host operator sandbox     the light ones
    build.py --all                          what a cluster pulls; rollout and trainer are gigabytes
    build.py examples/sop-quickstart        an environment's own image, on top of sandbox
    build.py --load host sandbox            and put them into the cluster of this machine
    build.py --all --push --prefix registry.example.com/headway --tag 1
                                            and put them into a registry, logged in to before

Prints one line an image: its name and, unless it is pushed, a tab and its OCI archive. Archives lie in the
cache under the hash of what they are made of, so a second build takes no time. Where a Docker engine answers
it builds, from the same Dockerfiles.
Standard library only.
"""

from __future__ import annotations

import sys

from headway_images.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], __doc__))
