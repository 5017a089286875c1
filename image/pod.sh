#!/usr/bin/env bash
# Process of a rented pod: sshd under supervisor, and once at its start the server that a deploy left on the volume.
set -euo pipefail

mkdir -p /run/sshd /root/.ssh
chmod 700 /root/.ssh
ssh-keygen -A >/dev/null
keys=/root/.ssh/authorized_keys
touch "$keys"
chmod 600 "$keys"
# RunPod's PUBLIC_KEY, Vast.ai's SSH_PUBLIC_KEY; the file is still there when a container starts again.
while read -r key; do
  [ -z "$key" ] || grep -qxF -- "$key" "$keys" || printf '%s\n' "$key" >>"$keys"
done < <(printf '%s\n' "${PUBLIC_KEY:-}" "${SSH_PUBLIC_KEY:-}")
[ -s "$keys" ] ||
  echo "nobody can log in: no public key was given. Fix: set PUBLIC_KEY to yours, in the pod's environment" >&2
exec supervisord --nodaemon --configuration /etc/supervisor/supervisord.conf
