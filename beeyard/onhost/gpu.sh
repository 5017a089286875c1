#!/bin/sh
# Make the NVIDIA cards ready before anything looks for them: CUDA looks once, and goes on without a card if it finds none.
# Run at boot by beeyard-gpu.service, and once by the deploy.
set -eu
device=${1:-/dev/nvidia-uvm} devices=${2:-/proc/devices}
said=$(modprobe nvidia-uvm 2>&1) || {
    echo "the kernel module nvidia-uvm is not loaded: $said. Fix: dkms status; install the driver, or reboot if it just was" >&2
    exit 1
}
# The module alone makes no device; nvidia-modprobe or a udev rule of the distribution does, where there is one.
nvidia-modprobe -u -c 0 2>/dev/null || :
if [ ! -e "$device" ]; then
    major=$(awk '$2 == "nvidia-uvm" { print $1; exit }' "$devices")
    mknod -m 666 "$device" c "$major" 0
fi
# Persistence: else the driver forgets a card whenever nobody uses it, and takes seconds to find it again.
nvidia-smi -pm 1 >/dev/null
