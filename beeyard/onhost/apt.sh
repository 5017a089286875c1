#!/bin/sh
# sh apt.sh WAIT_S PROGRESS WORD...: apt-get WORD..., when nobody else uses apt; PROGRESS is a file whose last line says
# what it waits for. It asks nothing, restarts no service, keeps changed configuration files, tries a mirror's hiccup
# again and ends what an interrupted dpkg left half done. A failure ends in one sentence.
set -u
wait_s=$1 progress=$2
shift 2
# C: messages are read below. needrestart lists what it would restart: a server in the middle of an answer is none.
export LC_ALL=C DEBIAN_FRONTEND=noninteractive DEBIAN_PRIORITY=critical APT_LISTCHANGES_FRONTEND=none
export NEEDRESTART_MODE=l UCF_FORCE_CONFFOLD=1
pauses_s="2 5"

said=$(mktemp)
trap 'rm -f "$said" "$progress"' EXIT
lists="" archives="" status=""
eval "$(apt-config shell lists Dir::State::lists/d archives Dir::Cache::archives/d status Dir::State::status/f)"
dpkg=$(dirname "$status")

tell() { echo "$1" >"$progress"; }
fail() {
    cat "$said" >&2
    echo "$1" >&2
    exit 1
}
complaint() { grep -E -m 1 '^(E|dpkg): ' "$said" | sed 's/^E: //; s/\.$//' | cut -c1-300 | grep . || echo "no reason given"; }

# "process 12 (apt-get) holds FILE", for a lock that is taken; nothing if all are free.
holder() {
    for file in "$dpkg/lock-frontend" "$dpkg/lock" "${lists}lock" "${archives}lock"; do
        inode=$(stat -c %i "$file" 2>/dev/null) || continue
        pids=$(awk -v inode="$inode" '$2 != "->" { n = split($6, at, ":"); if (at[n] == inode) print $5 }' /proc/locks)
        for pid in $pids; do
            if [ "$pid" -le 0 ]; then
                [ -n "$taken" ] && echo "a process outside this container holds $file" && return
            elif find "/proc/$pid/fd" -lname "$(readlink -f "$file")" 2>/dev/null | grep -q .; then
                echo "process $pid ($(cat "/proc/$pid/comm")) holds $file" && return
            fi
        done
    done
}

apt() {
    apt-get -qq -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 \
        -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "$@" >"$said" 2>&1
}

# As apt, but it waits for others; $taken is set once apt itself said that a lock is taken.
alone() {
    taken=""
    deadline=$(($(date +%s) + wait_s))
    while :; do
        who=$(holder)
        if [ -z "$who" ]; then
            apt "$@" && return
            grep -qE 'Could not get lock|Unable to (acquire|lock)' "$said" || return
            taken=yes
            who=$(holder)
            [ -n "$who" ] || who=$(complaint)
        fi
        if [ "$(date +%s)" -ge "$deadline" ]; then
            pid=$(expr "$who" : 'process \([0-9]*\)')
            fail "apt is still in use after $wait_s s: $who. Fix: wait until it ends${pid:+, or see what it does: ps -fp $pid}; then deploy again"
        fi
        tell "apt waits: $who"
        sleep 1
    done
}

# Nothing may be left half done by a dpkg that was killed, or by a machine that lost power.
repaired() {
    grep -q 'dpkg was interrupted' "$said" || return
    tell "dpkg was interrupted here: dpkg --configure -a"
    dpkg --force-confdef --force-confold --configure -a >"$said" 2>&1 && return
    fail "dpkg was interrupted on this host, and dpkg --configure -a fails: $(tail -n 1 "$said" | cut -c1-300). Fix: run it there and see to what it names, then deploy again"
}

updated() {
    for pause_s in $pauses_s; do
        alone update -o APT::Update::Error-Mode=any && return
        tell "apt-get update fails, and is tried again: $(complaint)"
        sleep "$pause_s"
    done
    # A source that is gone for good may be one that nothing here needs: then the older lists do.
    if alone update || grep -qE 'Failed to fetch|does not have a Release file|is not signed' "$said"; then
        cat "$said" >&2
        return
    fi
    fail "apt-get update fails: $(complaint). Fix: see to the host's sources in /etc/apt, then deploy again"
}

if [ "$1" = update ]; then
    updated
    exit
fi
for pause_s in $pauses_s 0; do
    alone "$@" && exit
    if repaired; then continue; fi
    grep -qE 'Failed to fetch|Unable to fetch' "$said" && [ "$pause_s" != 0 ] || break
    tell "apt-get $1 fails, and is tried again: $(complaint)"
    sleep "$pause_s"
    updated
done
case $(cat "$said") in
*'Held packages were changed'*) fix="apt-mark showhold lists what is held there; apt-mark unhold what may change" ;;
*'held broken packages'*) fix="run it there: it lists which dependency the host's sources do not have" ;;
*'fix-broken install'*) fix="run apt-get --fix-broken install there, then deploy again" ;;
*'Unable to locate package'* | *'no installation candidate'*) fix="see that the host's sources in /etc/apt have it" ;;
*) fix="run apt-get $* there and see to what it names, then deploy again" ;;
esac
fail "apt-get $* fails: $(complaint). Fix: $fix"
