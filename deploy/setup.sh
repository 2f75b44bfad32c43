#!/bin/sh
# Keys, certificates, kits and records of docker-compose.yml's consortium, in deploy/demo/; again: nothing.
#   deploy/setup.sh
# In a real consortium every hospital makes its own keys on its own machine (docs/coordinator.md);
# here all are on one machine, and nobody telephones: --unseen.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
demo=$here/demo
core=${FEDAPP_CORE_IMAGE:-fedapp-core:0.1.0}
site=${FEDAPP_SITE_IMAGE:-fedapp-site:0.1.0}

# Containers never run as root: root's files are given to FEDAPP_UID, or the images' own account.
uid=$(id -u); gid=$(id -g)
if [ "$uid" = 0 ]; then uid=${FEDAPP_UID:-49999}; gid=${FEDAPP_GID:-49999}; fi
mkdir -p "$demo" "$demo/runs"
if [ "$(id -u)" = 0 ]; then chown "$uid:$gid" "$demo" "$demo/runs"; fi

fedapp() {
    docker run --rm --network none --user "$uid:$gid" -v "$demo:/demo" \
        -v "$here/consortium.toml:/consortium.toml:ro" "$core" "$@"
}

fedapp provision /consortium.toml --to /demo/provisioned >/dev/null
set --
for name in "Cleveland" "Hungary" "VA Long Beach"; do
    fedapp site keygen --name "$name" --to "/demo/hospitals/$name/secrets"
    set -- "$@" --sign "/demo/hospitals/$name/secrets/request.pem"
done
fedapp provision /consortium.toml --to /demo/provisioned --unseen "$@"
docker run --rm --network none --user "$uid:$gid" -v "$demo:/demo" \
    -v "$here/demo_data.py:/demo_data.py:ro" --entrypoint python "$site" /demo_data.py /demo/data

# Compose reads .env beside docker-compose.yml; what is in it already stays.
env=$here/../.env
if [ ! -e "$env" ]; then
    nginx=nginx:1.28-alpine
    if docker image inspect fedapp-nginx >/dev/null 2>&1; then nginx=fedapp-nginx; fi
    printf 'FEDAPP_%s=%s\n' UID "$uid" GID "$gid" CORE_IMAGE "$core" SITE_IMAGE "$site" \
        NGINX_IMAGE "$nginx" > "$env"
    echo "Wrote .env"
fi
echo "Next: docker-compose up -d, then deploy/run.sh"
