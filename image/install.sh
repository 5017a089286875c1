#!/usr/bin/env bash
# install.sh PACKAGE...: Debian or Ubuntu packages inside an image build, with nothing left behind that is not theirs.
set -euo pipefail
rm -f /etc/apt/apt.conf.d/docker-clean # it would empty the cache mount
apt-get -qq -o Acquire::Retries=3 update
DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install --yes --no-install-recommends "$@"
rm -rf /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/cache/ldconfig/aux-cache /etc/ssh/ssh_host_*
