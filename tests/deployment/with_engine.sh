#!/bin/sh
# The tests that need containers, on a bare Debian or Ubuntu: installs what is missing, starts an engine if
# none answers, builds the images that are missing or old, runs the tests, ends what it started.
#   tests/deployment/with_engine.sh [options of pytest]
# Without an engine it needs root or sudo. An engine that runs already is used and left alone, and so are
# images: the next time costs what has changed. COMPOSE_TEST_LIMIT, in seconds (2400): tests that take longer
# are ended, with exit code 124.
set -eu

limit=${COMPOSE_TEST_LIMIT:-2400}
case $limit in
    *[!0-9]* | 0*)
        echo "error: COMPOSE_TEST_LIMIT is '$limit', expected a number of seconds" >&2
        exit 2 ;;
esac

cd "$(dirname "$0")/../.."
sudo=
if [ "$(id -u)" != 0 ]; then sudo=sudo; fi

missing=
for pair in dockerd:docker.io docker-compose:docker-compose iptables:iptables \
    debootstrap:debootstrap nginx:nginx-light busybox:busybox-static; do
    # Debian keeps some of them where a plain account's PATH does not lead.
    PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
if [ -n "$missing" ]; then
    echo "Installing$missing"
    $sudo apt-get update -qq
    # shellcheck disable=SC2086  # several names
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

work=$(mktemp -d)
engine=
finish() {
    # Sent to the engine itself, which ends its containers and what it started.
    if [ -n "$engine" ]; then
        $sudo kill "$(cat "$work/docker.pid")" 2>/dev/null || true
        wait "$engine" || true
    fi
    $sudo rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

if ! docker info >/dev/null 2>&1; then
    echo "Starting an engine"
    $sudo dockerd --group "$(id -g)" --pidfile "$work/docker.pid" >"$work/log" 2>&1 &
    engine=$!
    tries=0
    until docker info >/dev/null 2>&1; do
        tries=$((tries + 1))
        if [ "$tries" -gt 60 ] || ! kill -0 "$engine" 2>/dev/null; then
            tail -20 "$work/log" >&2
            echo "error: the engine does not start" >&2
            exit 1
        fi
        sleep 1
    done
fi

deploy/images.sh
began=$(date +%s)
# Interrupted as by Ctrl-C, so that the tests take their containers down; two minutes later killed.
code=0
timeout --foreground --signal=INT --kill-after=120 "$limit" \
    .venv/bin/python -m pytest -n 0 -m docker --durations 10 tests/deployment "$@" || code=$?
# 137: of the killing, or by somebody else before the limit.
if [ "$code" = 124 ] || { [ "$code" = 137 ] && [ $(($(date +%s) - began)) -ge "$limit" ]; }; then
    echo "error: the tests in containers took longer than $limit s (COMPOSE_TEST_LIMIT) and were ended" >&2
    code=124
fi
exit "$code"
