#!/bin/sh
# What every image is built on, the same whether Docker starts from debian:12-slim or mmdebstrap from nothing.
# Arguments: packages that are still to be installed (none where mmdebstrap did it).
set -eu
if [ $# -gt 0 ] && ! dpkg -s "$@" >/dev/null 2>&1; then
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@"
    rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/apt /var/log/dpkg.log
fi
# Libraries ask for the user's name; without an entry here getpwuid fails under Kubernetes.
grep -q ^headway: /etc/passwd || echo 'headway:x:65532:65532:headway:/tmp:/usr/sbin/nologin' >>/etc/passwd
grep -q ^headway: /etc/group || echo 'headway:x:65532:' >>/etc/group
# Bytecode that does not record times: layers get fixed timestamps, and stale bytecode would be compiled
# again at each start of each pod. libpython's own tests and the like never run.
if [ ! -e /usr/lib/python3/.headway ]; then
    python3 -m compileall -qq -f --invalidation-mode unchecked-hash /usr/lib/python3 /usr/lib/python3.[0-9]* || true
    touch /usr/lib/python3/.headway
fi
