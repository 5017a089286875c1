#!/usr/bin/env bash
# Takes down what up.sh started, and nothing else.
#
#   down.sh          containers, network, and dockerd if up.sh started it; images, volumes and keys stay
#   down.sh --all    also images, volumes and what up.sh keeps in the state directory; Debian's packages stay
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$here/common.sh"

containers() {
  local host id
  for host in "${!SSH_PORT[@]}" hub; do
    owned "beeyard-$host" || continue
    docker rm --force --volumes "beeyard-$host" >/dev/null
    say "removed beeyard-$host"
  done
  docker network ls --quiet --filter "label=$LABEL" | while read -r id; do docker network rm "$id" >/dev/null; done
}

images() {
  local id
  docker volume ls --quiet --filter "label=$LABEL" | while read -r id; do docker volume rm "$id" >/dev/null; done
  # By name: an image that a test built on ours carries our label too, and stays.
  docker image ls --filter "reference=$IMAGES/*" --format '{{.Repository}}:{{.Tag}}' |
    while read -r id; do docker image rm "$id" >/dev/null; done
  say "removed images and volumes"
}

state() {
  local name
  for name in apt ca hub log ssh wheels id_ed25519 id_ed25519.pub known_hosts ssh_config wheels.done pod-apt.done lock; do
    rm -rf "${STATE:?}/$name"
  done
  rmdir --ignore-fail-on-non-empty "$STATE"
  say "removed the state directory's content"
}

engine() {
  local pid
  if [ -f "$STATE/engine.systemd" ]; then
    systemctl stop docker.socket docker.service
    rm "$STATE/engine.systemd"
    say "stopped docker.service"
  fi
  pid=$(cat "$STATE/dockerd.pid" 2>/dev/null) || return 0
  # A machine that was started anew may have given the number to another.
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] || return 0
  kill "$pid"
  wait_for 30 test ! -d "/proc/$pid" || die "dockerd, process $pid, does not stop" "kill -9 $pid"
  say "stopped dockerd"
}

main() {
  case "${1:-}" in
    '' | --all) ;;
    *) die "down.sh does not know $1" "use: down.sh [--all]" ;;
  esac
  exec 9>"$STATE/lock"
  flock 9
  if engine_answers; then
    containers
    [ "${1:-}" != --all ] || images
  fi
  engine
  [ "${1:-}" != --all ] || state
}

main "$@"
