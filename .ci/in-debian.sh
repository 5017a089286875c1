#!/usr/bin/env bash
# in-debian.sh COMMAND...: runs a command as root in a fresh Debian that may start a Docker Engine of its own.
#
# The test bed wants Debian and a hosted runner is Ubuntu. mmdebstrap checks Debian's signatures, so that no image
# has to be pinned.
set -euo pipefail
suite=bookworm image=beeyard-ci:bookworm
sudo apt-get -qq update
sudo apt-get -qq install --yes --no-install-recommends mmdebstrap debian-archive-keyring >/dev/null
root=$(mktemp --suffix=.tar)
trap 'rm -f "$root"' EXIT
sudo mmdebstrap --quiet --variant=minbase \
  --include=ca-certificates,curl,git,make,procps,python3,python3-venv,python3-pip,iproute2 "$suite" "$root"
docker import "$root" "$image"
# A volume for the inner engine: overlayfs does not lie on overlayfs. The clone is another user's, which git refuses.
docker run --rm --privileged --cgroupns host --volume "$PWD:$PWD" --workdir "$PWD" --volume /var/lib/docker \
  --env GIT_CONFIG_COUNT=1 --env GIT_CONFIG_KEY_0=safe.directory --env "GIT_CONFIG_VALUE_0=$PWD" "$image" "$@"
