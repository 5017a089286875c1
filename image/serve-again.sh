#!/bin/sh
# Start what a deploy left on the volume: a pod that was stopped has a new container, in which nothing runs yet.
prefix=/workspace/beeyard
# What `beeyard pods up` left there starts the watcher of the pod's deadline as well.
[ ! -x "$prefix/bin/at-start" ] || exec "$prefix/bin/at-start"
[ -e "$prefix/current" ] || exit 0
exec python3 "$prefix/bin/guard.py" start "$prefix"
