#!/bin/sh
# /start.sh of a rented pod, as RunPod has it: keys, variables for shells, sshd, nothing else.
set -eu
mkdir -p /run/sshd /root/.ssh
printf '%s\n' "$PUBLIC_KEY" >>/root/.ssh/authorized_keys
chmod -R go= /root/.ssh
ssh-keygen -A >/dev/null
env | grep '^RUNPOD_\|^BEEYARD_' | sed 's/^\([^=]*\)=\(.*\)$/export \1="\2"/' >/etc/rp_environment
/usr/sbin/sshd -h /etc/ssh/ssh_host_ed25519_key -o AuthorizedKeysFile=/root/.ssh/authorized_keys
exec sleep infinity
