#!/usr/bin/env bash
# free-disk.sh: removes a hosted runner's own toolchains. Building for CUDA wants 25 GiB; a runner promises 14.
set -euo pipefail
[ "${RUNNER_ENVIRONMENT:-}" = github-hosted ] || {
  echo "this is no GitHub-hosted runner, and its toolchains stay. Fix: free the disk yourself" >&2
  exit 1
}
sudo rm -rf /usr/share/dotnet /usr/share/swift /usr/local/lib/android /usr/local/.ghcup /opt/ghc /opt/hostedtoolcache/CodeQL
df -h /
