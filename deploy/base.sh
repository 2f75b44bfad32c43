#!/bin/sh
# Base images on a machine that reaches Debian's mirror but no image registry. As root:
#   deploy/base.sh            makes fedapp-base (Python 3.11) and fedapp-nginx
#   deploy/base.sh NAME       makes one of them
# Then: docker build --build-arg BASE=fedapp-base ..., and FEDAPP_NGINX_IMAGE=fedapp-nginx in .env.
# Needs debootstrap and a running Docker engine. A few minutes.
set -eu

release=${RELEASE:-bookworm}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

image() {  # NAME PACKAGES
    debootstrap --variant=minbase --include="$2" "$release" "$work/$1"
    # Of no use in an image; licences stay.
    rm -rf "$work/$1"/var/cache/apt/* "$work/$1"/var/lib/apt/lists/* "$work/$1"/usr/share/locale/* \
        "$work/$1"/usr/share/man/*
    find "$work/$1/usr/share/doc" -type f ! -name copyright -delete
    tar -C "$work/$1" -c . | docker import - "$1"
    rm -rf "${work:?}/$1"
}

if [ $# = 0 ]; then set -- fedapp-base fedapp-nginx; fi
for name in "$@"; do
    case $name in
        fedapp-base) image "$name" python3,python3-venv,python3-pip,ca-certificates,openssl ;;
        fedapp-nginx) image "$name" nginx-light ;;
        *) echo "error: no image $name; fedapp-base or fedapp-nginx" >&2; exit 2 ;;
    esac
done
