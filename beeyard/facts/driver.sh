# What gives a host its NVIDIA driver, a line a fact: KEY=VALUE. Changes nothing, and needs no network.
# shellcheck shell=sh
#
# Arguments: [ROOT]   before places of the firmware and of keys; empty but in tests

root=${1-}
# Secure Boot, as mokutil or the firmware's variable says it: five bytes, the last is 1. Then a module that is built here
# is loaded only if the key that signs it is enrolled: DKMS' own, or on Ubuntu shim-signed's.
sb_state=$(mokutil --sb-state 2>/dev/null)
[ -n "$sb_state" ] || sb_state=$(od -An -tu1 "$root"/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c 2>/dev/null)
case $sb_state in
*enabled* | *' 1') echo "secure_boot=yes" ;;
esac
for key in "$root"/var/lib/shim-signed/mok/MOK.der "$root"/var/lib/dkms/mok.pub; do
    [ -f "$key" ] || continue
    mokutil --test-key "$key" 2>/dev/null | grep -q 'already enrolled' && echo "enrolled_key=${key#"$root"}"
done

echo "uid=$(id -u)"
container=$(systemd-detect-virt --container 2>/dev/null)
[ -e /.dockerenv ] && [ "${container:-none}" = none ] && container=docker
[ -e /run/.containerenv ] && [ "${container:-none}" = none ] && container=podman
echo "container=$container"
# shellcheck disable=SC1091
(. /etc/os-release && echo "distribution=$ID" && echo "release=${VERSION_ID:-}")
echo "apt=$(command -v apt-get)"
echo "kernel=$(uname -r)"
echo "nvidia_smi=$(command -v nvidia-smi)"
timeout 20 nvidia-smi --list-gpus 2>/dev/null | grep -q '^GPU ' && echo works=yes
for device in /sys/bus/pci/devices/*; do
    case "$(cat "$device/vendor" 2>/dev/null) $(cat "$device/class" 2>/dev/null)" in
    "0x10de 0x03"*) sed 's/^0x/card=/' "$device/device" ;;
    esac
done
command -v apt-get >/dev/null || exit 0
echo "architecture=$(dpkg --print-architecture)"
# Without release information it also lists what was not fetched yet.
# shellcheck disable=SC2016 # for apt, not for the shell
apt-get indextargets --no-release-info --format '$(COMPONENT)' 'Created-By: Packages' 2>/dev/null | sort -u | sed 's/^/component=/'
eval "$(apt-config shell status Dir::State::status/f)"
# shellcheck disable=SC2154 # apt-config says it
info=$(dirname "$status")/info
booted=$(awk '/^btime/ { print $2 }' /proc/stat)
images=""
# shellcheck disable=SC2016
for line in $(dpkg-query --show --showformat '${db:Status-Abbrev}|${Package}|${Version}\n' \
    'nvidia-driver' 'nvidia-driver-[0-9]*' 'nvidia-open*' 'linux-image-*' 2>/dev/null | grep '^ii' | tr -d ' '); do
    package=$(echo "$line" | cut -d'|' -f2)
    case $package in
    linux-image-[0-9]*) ;;
    linux-image-*) images="$images $package" && echo "image=$package" ;;
    *)
        echo "installed=$package $(echo "$line" | cut -d'|' -f3)"
        [ "$(stat -c %Y "$info/$package.list" 2>/dev/null || echo 0)" -lt "$booted" ] && echo booted_since=yes
        ;;
    esac
done
headers="linux-headers-$(uname -r) linux-headers-$(dpkg --print-architecture)"
for image in $images; do headers="$headers linux-headers-${image#linux-image-}"; done
drivers=$(apt-cache pkgnames nvidia-driver- 2>/dev/null | grep -xE 'nvidia-driver-[0-9]+(-server)?(-open)?')
# shellcheck disable=SC2086 # each is a name without spaces
apt-cache policy nvidia-driver nvidia-open-kernel-dkms $drivers $headers 2>/dev/null | awk '
    /^[^ ]/ { sub(":$", "", $1); name = $1 }
    $1 == "Candidate:" && $2 != "(none)" { print "offer=" name " " $2 }'
ubuntu-drivers devices 2>/dev/null | awk '/ recommended/ { print "recommended=" $3; exit }'
exit 0
