#!/bin/sh
# PID 1 of a host without systemd, as on a rented pod: it keeps sshd and, by waiting, reaps what sshd leaves behind.
trap 'exit 0' TERM INT
mkdir -p /run/sshd
/usr/sbin/sshd -D &
wait $!
