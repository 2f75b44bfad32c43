#!/bin/sh
# One run of docker-compose.yml's consortium; its folder is left in deploy/demo/runs/.
#   deploy/run.sh                                 the main job
#   deploy/run.sh "method='svd' lora.rank=4"      other settings, as `flwr run --run-config` takes them
# Exit code 0 if and only if the run completed: `flwr run --stream` alone says 0 for a failed one too.
set -eu

cd "$(dirname "$0")/.."
compose=${COMPOSE:-docker-compose}
settings=${1:-}

flwr() { $compose run --rm -T flwr "$@"; }

# The labels in the order of embedded:heart, so that all hospitals number them alike.
id=$(flwr run /app fedapp --format json \
    -c "output-dir='/runs' data.labels='no heart disease,heart disease' federation.min-sites=3" \
    ${settings:+-c "$settings"} | sed -n 's/.*"run-id": *"\{0,1\}\([0-9]*\).*/\1/p')
[ -n "$id" ] || { echo "error: the run was not accepted" >&2; exit 1; }
flwr log "$id" fedapp
status=$(flwr list fedapp --run-id "$id" --format json \
    | sed -n 's/.*"status": *"\([a-z:]*\)".*/\1/p' | head -1)
echo "$status"
[ "$status" = finished:completed ]
