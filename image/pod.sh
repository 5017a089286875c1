#!/bin/bash
# Process of a rented pod: sshd under supervisor, and the server that a deploy left on the volume, started again.
set -eu
mkdir -p /run/sshd /root/.ssh
chmod 700 /root/.ssh
ssh-keygen -A >/dev/null
# RunPod's PUBLIC_KEY, Vast.ai's SSH_PUBLIC_KEY.
printf '%s\n' "${PUBLIC_KEY:-}" "${SSH_PUBLIC_KEY:-}" | sed '/^$/d' >>/root/.ssh/authorized_keys
chmod 600 /root/.ssh/authorized_keys
exec supervisord --nodaemon --configuration /etc/supervisor/supervisord.conf
