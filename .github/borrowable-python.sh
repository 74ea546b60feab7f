#!/usr/bin/env bash
# Has uv fetch a Python that brings its own libraries. Pods on kind can borrow it from the runner, whose own Python
# is newer than the pods' image. Prints the setting by which hack/python and hack/cluster find it.
set -euo pipefail
tool="$(mktemp -d)"
python3 -m venv "$tool"
"$tool/bin/pip" install --quiet --require-hashes -r requirements/bootstrap.txt >&2
"$tool/bin/uv" python install 3.11 >&2
echo "HEADWAY_PYTHON=$(realpath "$("$tool/bin/uv" python find --managed-python 3.11)")"
