#!/bin/sh
# Base images on a machine that reaches Debian's mirror but no image registry. As root:
#   deploy/base.sh            makes fedapp-base (Python 3.11) and fedapp-nginx
# Then: docker build --build-arg BASE=fedapp-base ..., and FEDAPP_NGINX_IMAGE=fedapp-nginx in .env.
# Needs debootstrap and a running Docker engine. A few minutes.
set -eu

release=${RELEASE:-bookworm}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

image() {  # NAME PACKAGES
    debootstrap --variant=minbase --include="$2" "$release" "$work/$1"
    # Packages' archives and lists are of no use in an image.
    rm -rf "$work/$1"/var/cache/apt/archives/*.deb "$work/$1"/var/lib/apt/lists/*
    tar -C "$work/$1" -c . | docker import - "$1"
    rm -rf "${work:?}/$1"
}

image fedapp-base python3,python3-venv,python3-pip,ca-certificates,openssl
image fedapp-nginx nginx-light
