#!/usr/bin/env bash
# check.sh DOCKERFILE...: BuildKit's own checks, where the engine here has them (Docker 27, buildx 0.15).
set -euo pipefail
if ! docker buildx build --help 2>/dev/null | grep -q -- '--check'; then
  echo "left out: docker build --check, which wants buildx 0.15 or newer" >&2
  exit 0
fi
version=$(docker version --format '{{.Server.Version}}' 2>/dev/null || echo none)
if [ "$version" = none ] || [ "${version%%.*}" -lt 27 ]; then
  echo "left out: docker build --check, which wants Docker Engine 27 or newer; here: $version" >&2
  exit 0
fi
for file in "$@"; do
  # No base is asked for: what is checked is how the file is written.
  args=()
  for name in BASE BUILD_BASE SERVER_BASE; do
    ! grep -q "^ARG $name\b" "$file" || args+=(--build-arg "$name=scratch")
  done
  docker buildx build --check --file "$file" "${args[@]}" --build-context ca=. "$(dirname "$file")"
done
