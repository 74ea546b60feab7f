#!/bin/sh
# install.sh LOCK: puts requirements/LOCK.txt into /opt/headway/venv, hashes checked.
# Runs inside an image build, with what it needs of the repository at /build.
set -eu
venv=/opt/headway/venv
# A builder behind a mirror or a proxy hands its settings in as a secret, which no layer keeps.
if [ -f /run/secrets/build-env ]; then
    set -a
    . /run/secrets/build-env
    set +a
fi
export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt
export UV_NO_CACHE=1 UV_NO_PROGRESS=1 UV_PYTHON_DOWNLOADS=never
export UV_COMPILE_BYTECODE=1 PYC_INVALIDATION_MODE=UNCHECKED_HASH
# DeepSpeed's kernels are built where they are used.
export DS_BUILD_OPS=0
tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
python3 -m venv "$tool"
"$tool/bin/pip" --quiet --no-cache-dir --disable-pip-version-check install \
    --require-hashes -r /build/requirements/bootstrap.txt
"$tool/bin/uv" venv --quiet --python /usr/bin/python3 "$venv"
"$tool/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps \
    --build-constraints /build/requirements/build.txt --require-hashes -r "/build/requirements/$1.txt"
