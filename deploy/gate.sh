#!/bin/sh
# Whether the gate does its work, for its container's health check: a call on its port is answered.
#   deploy/gate.sh [PORT]
# Exit code 0, or 1 and a sentence. It calls without TLS, to which nginx says 400: so it needs no
# program but one that opens a connection, bash (the image of deploy/base.sh) or nc (nginx:alpine).
# Whether a SuperNode gets through to the SuperLink is what the SuperNode's own check tells.
set -u

port=${1:-8443}
call='GET / HTTP/1.0\r\n\r\n'
patience=5  # seconds
limit=
if command -v timeout >/dev/null; then limit="timeout $patience"; fi  # of the connection as well
if command -v bash >/dev/null; then
    # shellcheck disable=SC2016,SC2086  # bash's own variables; two words, or none
    line=$($limit bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$0" && printf "$1" >&3 && read -r -t "$2" line <&3 &&
        printf "%s" "$line"' "$port" "$call" "$patience" 2>/dev/null)
elif command -v nc >/dev/null; then
    # shellcheck disable=SC2059,SC2086  # its escapes are meant; two words, or none
    line=$(printf "$call" | $limit nc 127.0.0.1 "$port" 2>/dev/null | head -n 1)
else
    echo "the gate cannot be asked: its image has neither bash nor nc"
    exit 1
fi
case $line in
    'HTTP/1.1 400 '*) echo "the gate answers" ;;
    *) echo "the gate does not answer on port $port"; exit 1 ;;
esac
