#!/bin/sh
# One run of docker-compose.yml's demonstration; its folder is left in deploy/demo/runs/.
#   deploy/run.sh                                 the main job
#   deploy/run.sh "method='svd' lora.rank=4"      other settings, as `flwr run --run-config` takes them
# Exit code 0 if and only if the run completed. COMPOSE="docker compose" for Compose v2.
# A real consortium's runs are started without the demonstration's settings: docs/coordinator.md, 6.
set -eu

cd "$(dirname "$0")/.."
# The labels in the order of embedded:heart, so that all hospitals number them alike.
# shellcheck disable=SC2086  # it may be two words
exec ${COMPOSE:-docker-compose} run --rm -T --entrypoint python flwr /app/deploy/job.py \
    --default "data.labels='no heart disease,heart disease'" --default federation.min-sites=3 "$@"
