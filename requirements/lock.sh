#!/usr/bin/env bash
# Writes requirements/cpu.lock, cuda.lock and gym.lock from the .in files: what `make lock` runs.
#
# Pins that still fit are kept; `make lock UPGRADE=1` takes the newest of everything. Resolved for Linux x86-64 and
# Python 3.11, the oldest supported: its needs include those of 3.12 and 3.13. The lines are package==version alone:
# no hashes, no local versions, so that the same lock serves every registry and mirror. Nothing is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

uv=../.venv/bin/uv
if [[ ! -x $uv ]]; then
    uv=$(command -v uv) || { echo "lock: error: no uv; run \`make setup\` first" >&2; exit 1; }
fi
[[ -z ${PIP_CERT:-} ]] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$PIP_CERT}"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

compile() { # name, then further arguments for uv
    local name=$1 wanted
    shift
    wanted=$scratch/$name
    sed '/^torch==/d' "$name.lock" >"$wanted" 2>/dev/null || true
    "$uv" pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 ${UPGRADE:+--upgrade} \
        --no-header --no-annotate "$@" orchestrator.in ray.in dev.in engine.in "$name.in" --output-file "$wanted" >/dev/null
    sed -E 's/\+[a-z0-9.]+$//' "$wanted" >"$name.lock"
    echo "lock: requirements/$name.lock has $(wc -l <"$name.lock") packages"
}

if [[ -n ${PIP_FIND_LINKS:-} ]]; then
    compile cpu --override overrides.txt --find-links "$PIP_FIND_LINKS"
else
    compile cpu --override overrides.txt --torch-backend cpu
fi
compile cuda

# What reasoning-gym needs beside the rest, at the versions of both locks: a lock of its own, as it may fail to install.
# It pins an older tabulate than cuda.lock has, whose one function that it calls has not changed.
cp gym.lock "$scratch/gym"
"$uv" pip compile --quiet --python-version 3.11 --no-header --no-annotate ${UPGRADE:+--upgrade} gym.in \
    --constraint cpu.lock --constraint cuda.lock --override <(echo "tabulate>=0.9") --output-file "$scratch/gym" >/dev/null
grep -vxF -f cpu.lock "$scratch/gym" >gym.lock
echo "lock: requirements/gym.lock has $(wc -l <gym.lock) packages"
