#!/bin/sh
# Runs N processes of the relay until SIGTERM, or until one ends: several.sh N PROGRAM
processes=""
trap 'kill $processes 2>/dev/null; wait; exit 0' TERM INT
number=0
while [ "$number" -lt "$1" ]; do
  number=$((number + 1))
  RELAY_ID=relay-$number SERVER_PORT=127.0.0.1:$((18080 + number)) "$2" &
  processes="$processes $!"
done
wait
