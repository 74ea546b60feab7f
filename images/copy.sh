#!/bin/sh
# Puts Headway's own packages beside what install.sh installed. Copied and not built as a wheel: a change of
# our code must not cost a build environment.
set -eu
python=/opt/headway/venv/bin/python
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for package in /build/*/headway_*/; do
    cp -r "$package" "$site"
done
find "$site"/headway_* -name __pycache__ -prune -exec rm -rf {} +
exec "$python" -m compileall -q --invalidation-mode unchecked-hash "$site"/headway_*
