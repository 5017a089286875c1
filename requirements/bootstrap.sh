#!/bin/sh
# bootstrap.sh run|dev   makes .venv and installs requirements/run.txt or dev.txt into it, with hashes checked.
# Does nothing, in a few milliseconds, when that was done already.
set -eu
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}

wanted=requirements/$1.txt
digest=$(cat requirements/dev.txt requirements/run.txt requirements/bootstrap.sh | cksum)
# dev.txt holds all of run.txt.
for done in "$1" dev; do
    if [ "$(cat ".venv/.beeyard-$done" 2>/dev/null)" = "$digest" ]; then exit 0; fi
done

enough='import sys; sys.exit(sys.version_info < (3, 11))'
python=
for name in python3 python3.13 python3.12 python3.11 python3.14; do
    if command -v "$name" >/dev/null && "$name" -c "$enough"; then
        python=$name
        break
    fi
done
[ -n "$python" ] || die "No Python 3.11 or newer is here. Fix: install one, as python3.12 of your distribution"

if ! .venv/bin/python -c "$enough" 2>/dev/null; then
    say "Making .venv with $("$python" --version)"
    if ! "$python" -m venv --clear .venv >/dev/null 2>&1; then
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            say "Installing python3-venv"
            apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes python3-venv >/dev/null
            "$python" -m venv --clear .venv
        elif command -v uv >/dev/null; then
            uv venv --quiet --clear --python "$python" .venv
        else
            die "$python cannot make an environment. Fix: sudo apt-get install python3-venv"
        fi
    fi
fi

uv=.venv/bin/uv
if [ ! -x "$uv" ]; then
    if command -v uv >/dev/null; then
        uv=uv
    else
        say "Installing uv"
        .venv/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes --no-deps \
            --requirement requirements/uv.txt || die "uv could not be installed. Fix: check that pip reaches its package index"
    fi
fi
say "Installing $wanted"
VIRTUAL_ENV=.venv "$uv" pip sync --quiet --require-hashes "$wanted" ||
    die "Installing $wanted failed. Fix: check that the package index can be reached, then run again"
# The command that `make up` and the documents name.
cat >.venv/bin/beeyard <<'SCRIPT'
#!/bin/sh
bin=$(cd "$(dirname "$0")" && pwd)
PYTHONPATH=${bin%/.venv/bin} exec "$bin/python" -m beeyard.cli "$@"
SCRIPT
chmod +x .venv/bin/beeyard
echo "$digest" >".venv/.beeyard-$1"
