#!/bin/sh
# Keys, certificates, kits and records of docker-compose.yml's consortium, in deploy/demo/; again: nothing.
#   deploy/setup.sh
# In a real consortium every hospital makes its own keys on its own machine (docs/coordinator.md);
# here all are on one machine, and the "telephone" is this script.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
demo=$here/demo
core=${FEDAPP_CORE_IMAGE:-fedapp-core:0.1.0}
site=${FEDAPP_SITE_IMAGE:-fedapp-site:0.1.0}

# Containers never run as root: root's files are given to the images' own account.
uid=$(id -u); gid=$(id -g)
if [ "$uid" = 0 ]; then uid=49999; gid=49999; fi
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
fedapp provision /consortium.toml --to /demo/provisioned "$@"
docker run --rm --network none --user "$uid:$gid" -v "$demo:/demo" \
    -v "$here/demo_data.py:/demo_data.py:ro" --entrypoint python "$site" /demo_data.py /demo/data

# Compose reads .env beside docker-compose.yml; what is in it already stays.
env=$here/../.env
if [ ! -e "$env" ]; then
    printf 'FEDAPP_UID=%s\nFEDAPP_GID=%s\nFEDAPP_CORE_IMAGE=%s\nFEDAPP_SITE_IMAGE=%s\n' \
        "$uid" "$gid" "$core" "$site" > "$env"
    echo "Wrote .env"
fi
echo "Next: docker-compose up -d, then deploy/run.sh"
