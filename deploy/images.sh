#!/bin/sh
# Everything that docker-compose.yml needs, on a machine that reaches no image registry: base images,
# packages, and fedapp-core and fedapp-site out of them. What is there and still right is kept.
#   deploy/images.sh
# BASE=python:3.11-slim takes another base, and then no base image is made but nginx's.
set -eu

cd "$(dirname "$0")/.."
version=0.1.0
base=${BASE:-fedapp-base}
sudo=
if [ "$(id -u)" != 0 ]; then sudo=sudo; fi
has() { docker image inspect "$1" >/dev/null 2>&1; }

missing=
if [ "$base" = fedapp-base ] && ! has fedapp-base; then missing=fedapp-base; fi
if ! has fedapp-nginx; then missing="$missing fedapp-nginx"; fi
bases() {
    # shellcheck disable=SC2086  # several names
    if [ -n "$missing" ]; then $sudo deploy/base.sh $missing >/dev/null; fi
}
bases &
deploy/wheelhouse.sh
wait $!

for target in core site; do
    echo "Building fedapp-$target:$version"
    docker build --quiet --file deploy/Dockerfile --target "$target" --tag "fedapp-$target:$version" \
        --build-arg "BASE=$base" --build-arg PIP_NO_INDEX=1 . >/dev/null
done
docker image ls --filter 'reference=fedapp-*' --format '{{.Repository}}:{{.Tag}}  {{.Size}}'
