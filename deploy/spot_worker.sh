#!/usr/bin/env bash
# A worker on a machine that AWS may take back: runs `ray start` with these arguments until the node ends.
# Nothing in Ray looks for the notice by itself. Once the machine's metadata announce it, two minutes before the end,
# `ray start` is asked to end: it marks its node as draining, and stays for NOTICE_SECONDS. Runs that hear of it take a
# checkpoint.
set -u
metadata="${METADATA_URL:-http://169.254.169.254}"
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S="${NOTICE_SECONDS:-100}"

ray start --block "$@" &
ray=$!
trap 'kill -TERM "$ray" 2>/dev/null' TERM INT

is_announced() {
  local token
  token=$(curl -s -m 2 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$metadata/latest/api/token")
  curl -s -f -m 2 -o /dev/null -H "X-aws-ec2-metadata-token: $token" "$metadata/latest/meta-data/spot/instance-action"
}

while kill -0 "$ray" 2>/dev/null; do
  if is_announced; then
    kill -TERM "$ray"
    break
  fi
  sleep "${POLL_SECONDS:-5}" &
  wait $!
done
while kill -0 "$ray" 2>/dev/null; do wait "$ray"; done
