#!/bin/sh
# Shared propagation: without it a unit's LoadCredential= shows an empty directory.
mount --make-rshared /
exec /sbin/init
