#!/bin/sh
# One run of docker-compose.yml's consortium; its folder is left in deploy/demo/runs/.
#   deploy/run.sh                                 the main job
#   deploy/run.sh "method='svd' lora.rank=4"      other settings, as `flwr run --run-config` takes them
# Exit code 0 if and only if the run completed. COMPOSE="docker compose" for Compose v2.
set -eu

cd "$(dirname "$0")/.."
# shellcheck disable=SC2086  # it may be two words
exec ${COMPOSE:-docker-compose} run --rm -T --entrypoint python flwr /app/deploy/job.py "$@"
