# shellcheck shell=bash
# shellcheck disable=SC2034 # the names are for up.sh and down.sh
# What up.sh and down.sh share: the test bed's names, and how they speak.

STATE=${BEEYARD_TESTBED_STATE:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/.testbed}
mkdir -p "$STATE"
STATE=$(cd "$STATE" && pwd -P)

# This machine's own engine: neither a context nor a variable leads elsewhere.
export DOCKER_HOST=unix:///var/run/docker.sock
LABEL=beeyard.testbed
IMAGES=beeyard-testbed
NETWORK=beeyard-testbed
POD_WORKSPACE=beeyard-pod-workspace
POD_APT=beeyard-pod-apt
DOCKER_APT=beeyard-docker-apt
DOCKER_DATA=beeyard-docker-data
HUB_PORT=2210
CDN_PORT=2211 # where the hub sends clients for the bytes of large files
declare -A SSH_PORT=([systemd]=2201 [pod]=2202 [light]=2203 [docker]=2204)

say() {
  local now=${EPOCHREALTIME/[.,]/}
  local tenths=$(((now - START) / 100000))
  printf '[%3d.%d s] %s\n' $((tenths / 10)) $((tenths % 10)) "$*" >&2
}
START=${EPOCHREALTIME/[.,]/}

die() { # what is wrong, what to do
  say "$1. Fix: $2."
  exit 1
}

run_logged() { # name, what to do if it fails, command
  local log="$STATE/log/$1.log" fix=$2
  shift 2
  "$@" >"$log" 2>&1 || {
    tail -n 15 "$log" >&2
    die "$(basename "$log" .log) failed, see $log" "$fix"
  }
}

wait_for() { # seconds, command
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.2
  done
}

# A docker in /usr/local/bin may be an older client than Debian's.
docker() { if [ -x /usr/bin/docker ]; then /usr/bin/docker "$@"; else command docker "$@"; fi; }

engine_answers() { docker version -f '{{.Server.Version}}' >/dev/null 2>&1; }

owned() { # container: whether it is the test bed's
  [ -n "$(docker container inspect -f "{{index .Config.Labels \"$LABEL\"}}" "$1" 2>/dev/null)" ]
}
