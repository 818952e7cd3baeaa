#!/usr/bin/env bash
# Writes requirements/cpu.lock and cuda.lock, which a run needs, work.lock, which checks and tests add, and gym.lock, from
# the .in files: what `make lock` runs.
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
        --no-header --no-annotate "$@" orchestrator.in engine.in "$name.in" --output-file "$wanted" >/dev/null
    sed -E 's/\+[a-z0-9.]+$//' "$wanted" >"$name.lock"
    echo "lock: requirements/$name.lock has $(wc -l <"$name.lock") packages"
}

if [[ -n ${PIP_FIND_LINKS:-} ]]; then
    compile cpu --override overrides.txt --find-links "$PIP_FIND_LINKS"
else
    compile cpu --override overrides.txt --torch-backend cpu
fi
compile cuda

# One lock of additions for both: nothing that cpu.lock and cuda.lock have, and nothing that either has in another version.
cut -d = -f 1 cpu.lock | sort >"$scratch/names"
cut -d = -f 1 cuda.lock | sort | comm -12 "$scratch/names" - >"$scratch/both"
comm -3 <(sort cpu.lock) <(sort cuda.lock) | tr -d '\t' | cut -d = -f 1 | sort | uniq -d >"$scratch/differing"
constraints() { grep -vE "^($(paste -sd '|' "$scratch/differing"))==" "$1"; }
add() { # name, then further arguments for uv
    local name=$1
    shift
    cp "$name.lock" "$scratch/$name" 2>/dev/null || true
    "$uv" pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 ${UPGRADE:+--upgrade} \
        --no-header --no-annotate --constraint <(constraints cpu.lock) --constraint <(constraints cuda.lock) \
        --output-file "$scratch/$name" "$@" >/dev/null
    grep -vE "^($(paste -sd '|' "$scratch/both"))==" "$scratch/$name" >"$name.lock"
    echo "lock: requirements/$name.lock has $(wc -l <"$name.lock") packages more"
}
add work dev.in ray.in

# What reasoning-gym needs beside the rest: a lock of its own, as it may fail to install. It pins an older tabulate than
# cuda.lock has, whose one function that it calls has not changed.
add gym gym.in --constraint work.lock --override <(echo "tabulate>=0.9")
grep -vxF -f work.lock gym.lock >"$scratch/alone"
cp "$scratch/alone" gym.lock
