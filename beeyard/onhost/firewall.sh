#!/bin/sh
# Puts nftables' rules of ours in force so that nobody is locked out:
#
#   firewall.sh try FILE SECONDS   checks FILE, puts it in force, and takes it back after SECONDS unless kept
#   firewall.sh keep FILE NEW      a new connection came through: ends the clock, and makes NEW the rules at boot
#   firewall.sh off FILE           takes our table away, now and at boot
#
# The clock runs on the host, apart from the connection that started it: if that is what the rules cut, they go.
# Exit codes: 0 done; 4 refused, nothing was changed.
set -eu
clock=${BEEYARD_FIREWALL_CLOCK:-/run/beeyard-firewall.pid}

stop_clock() {
    [ -e "$clock" ] || return 0
    pid=$(cat "$clock")
    rm -f "$clock"
    kill -- "-$pid" 2>/dev/null || kill "$pid" 2>/dev/null || true
}

case $1 in
try)
    said=$(nft -c -f "$2" 2>&1) || {
        echo "nft refuses the rules: $said. Nothing was changed. Fix: report this as an issue" >&2
        exit 4
    }
    stop_clock
    kept=${4:-}
    # shellcheck disable=SC2016
    setsid sh -c '
        sleep "$1"
        nft delete table inet beeyard 2>/dev/null
        # What was in force before.
        [ -z "$2" ] || [ ! -e "$2" ] || nft -f "$2"
        rm -f "$3"' clock "$3" "$kept" "$clock" </dev/null >/dev/null 2>&1 &
    echo $! >"$clock"
    nft -f "$2"
    echo "the rules are in force for $3 s, and for good once a new connection has come through"
    ;;
keep)
    [ -e "$clock" ] || {
        echo "the clock has run out, and the rules were taken back: no new connection came through in time. Fix: see" \
            "that ssh_port in the inventory is the port that sshd listens on" >&2
        exit 4
    }
    stop_clock
    mkdir -p "${2%/*}"
    mv -f "$3" "$2"
    ;;
off)
    stop_clock
    nft delete table inet beeyard 2>/dev/null || true
    rm -f "$2"
    ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
