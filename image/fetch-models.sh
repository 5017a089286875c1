#!/bin/sh
# fetch-models.sh [URL FILE SIZE SHA256]...: brings the model files below /models and makes /secrets/api-key.
#
# What is there and right is left as it is. OWNER: the server's user, by number, who may read the key.
set -eu

if [ ! -s /secrets/api-key ]; then
    (umask 077 && head -c 36 /dev/urandom | base64 >/secrets/api-key.new)
    # The group is that of the folder's owner, so that whoever cloned this may read it, too.
    chown "$OWNER:$(stat -c %g /secrets)" /secrets/api-key.new
    chmod 0440 /secrets/api-key.new
    mv -f /secrets/api-key.new /secrets/api-key
    echo "made a key: secrets/api-key"
fi

token=$(tr -d '[:space:]' </run/secrets/hf-token 2>/dev/null || true)
while [ $# -ge 4 ]; do
    url=$1 file=/models/$2 size=$3 sha256=$4
    shift 4
    case $sha256 in unlocked)
        echo "model ${file##*/} is not in presets/lock.yaml. Fix: run \`beeyard lock\` for it, then \`make render\`" >&2
        exit 1
        ;;
    esac
    # How far it is, while it comes: this may take an hour.
    (while sleep 10; do
        have=$(stat -c %s "$file.partial" 2>/dev/null) || continue
        echo "${file##*/}: $((have / 1048576)) of $((size / 1048576)) MiB"
    done) &
    watch=$!
    result=0
    if [ -n "$token" ]; then printf 'header = "Authorization: Bearer %s"\n' "$token"; fi |
        /bin/sh /usr/local/bin/fetch.sh get "$url" "$file" "$size" "$sha256" || result=$?
    kill "$watch" 2>/dev/null || true
    [ "$result" = 0 ] || exit "$result"
    echo "${file##*/}: $size bytes, verified"
done
