#!/usr/bin/env bash
# Makes .venv: what `make setup` runs, and with the word `work` what checks and tests need too. Needs Python 3.11-3.13 and
# a package registry; does nothing when up to date.
#
#   OAPL_PYTHON=python3.12   the interpreter to build on       (default: the first of 3.11, 3.12, 3.13 that runs)
#   OAPL_LOCK=cpu|cuda       the lock to install               (default: cuda where nvidia-smi finds a GPU, else cpu)
#   OAPL_TORCH_BACKEND=...   uv's --torch-backend for PyTorch  (default: the build that the lock was resolved for)
#   PIP_FIND_LINKS=DIR...    extra places with wheels; PyTorch is then expected there or in the configured registry
#
# .venv/setup/environment is written last, so an interrupted install is noticed and built again from uv's download cache.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

wanted=${1:-run}
venv=.venv
stamps=$venv/setup

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }
[[ $wanted == run || $wanted == work ]] || fail "$wanted: say nothing (what a run needs) or work (what checks and tests need too)"

supported() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in ${OAPL_PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if command -v "$candidate" >/dev/null && supported "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    fail "no Python 3.11, 3.12 or 3.13 found (looked for ${OAPL_PYTHON:-python3.11 python3.12 python3.13 python3});" \
        "install one, or name it: OAPL_PYTHON=/path/to/python make setup"
}

# The full locks pin CUDA's own libraries, so an older driver is an error here and not a crash an hour later.
choose_lock() {
    local driver
    if [[ -n ${OAPL_LOCK:-} ]]; then
        [[ -f requirements/$OAPL_LOCK.lock ]] || fail "OAPL_LOCK=$OAPL_LOCK: say cpu or cuda"
        echo "$OAPL_LOCK"
    elif driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) &&
        [[ -n $driver ]]; then
        (( ${driver%%.*} >= 580 )) || fail "NVIDIA driver $driver is older than 580, which cuda.lock (CUDA 13.0) needs:" \
            "update the driver, or say OAPL_LOCK=cpu make setup"
        echo cuda
    else
        echo cpu
    fi
}

environment_key() { # of the interpreter $1
    { cat "requirements/$lock.lock"; "$1" -VV; pwd; } | sha256sum | cut -d ' ' -f 1
}

work_key() { cat requirements/work.lock requirements/gym.lock | sha256sum | cut -d ' ' -f 1; }

project_key() { sha256sum pyproject.toml | cut -d ' ' -f 1; }

stamp_is() { [[ -f $stamps/$1 && $(<"$stamps/$1") == "$2" ]]; }

write_stamp() {
    mkdir -p "$stamps"
    printf '%s\n' "$2" >"$stamps/$1.new"
    mv "$stamps/$1.new" "$stamps/$1"
}

listed=
apt_install() { # installs packages $@ where we may, else says what to type
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        # Images come without lists of packages. One list that cannot be read is no reason to stop: the others may do.
        [[ -n $listed ]] || { say "apt-get update"; apt-get update >/dev/null || true; listed=yes; }
        say "apt-get install -y $*"
        apt-get install -y "$@" >/dev/null || fail "\`apt-get install -y $*\` failed"
    else
        fail "something is missing on this machine; run: sudo apt-get install -y $*"
    fi
}

minor_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

has_headers() { # of Python, which a distribution may pack apart
    "$1" -c 'from os.path import isfile; from sysconfig import get_path; exit(not isfile(get_path("include") + "/Python.h"))'
}

# vLLM's CPU engine links against two libraries that a minimal Debian leaves out; on GPUs Triton compiles its launchers.
# On a CPU nothing is compiled.
check_libraries() {
    "$1" -c 'import ctypes; ctypes.CDLL("libnuma.so.1"); ctypes.CDLL("libstdc++.so.6")' 2>/dev/null ||
        apt_install libnuma1 libstdc++6
    [[ $lock == cuda ]] || return 0
    local missing=()
    command -v gcc >/dev/null || missing+=(gcc libc6-dev)
    has_headers "$1" || missing+=("python$(minor_version "$1")-dev")
    (( ${#missing[@]} == 0 )) || apt_install "${missing[@]}"
}

# A wheel named 2.13.0+cpu satisfies torch==2.13.0, so the wrong build would be noticed after ten gigabytes.
check_wheels() {
    local place wheel
    [[ $lock == cuda ]] || return 0
    for place in ${PIP_FIND_LINKS:-}; do
        for wheel in "$place"/torch-*+cpu*.whl; do
            [[ ! -e $wheel ]] || fail "$wheel (PIP_FIND_LINKS) is PyTorch for CPUs, and would take the place of the one" \
                "that cuda.lock means: unset PIP_FIND_LINKS, or say OAPL_LOCK=cpu"
        done
    done
}

check_disk() {
    local needed_gb=$1 free_kb
    free_kb=$(df -Pk . | awk 'NR == 2 {print $4}')
    (( free_kb >= needed_gb * 1024 * 1024 )) ||
        fail "$(pwd) has $(( free_kb / 1024 )) MiB free; $venv needs about $needed_gb GiB"
}

# A venv with uv in it. Debian ships Python without ensurepip unless python3-venv is installed.
make_venv() {
    local python=$1 uv_pin
    uv_pin=$(grep '^uv==' requirements/work.lock)
    rm -rf "$venv"
    if "$python" -c 'from ensurepip import bootstrap' 2>/dev/null; then
        "$python" -m venv "$venv"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$uv_pin" || failed_install
    elif "$python" -m pip --version >/dev/null 2>&1; then
        "$python" -m venv --without-pip "$venv"
        "$python" -m pip --python "$venv/bin/python" install --quiet --disable-pip-version-check "$uv_pin" || failed_install
    else
        apt_install "python$(minor_version "$python")-venv"
        "$python" -m venv "$venv"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$uv_pin" || failed_install
    fi
}

failed_install() {
    fail "the installation stopped (the reason is above); \`make setup\` again continues with what was downloaded"
}

# uv reads none of pip's settings by itself.
carry_pip_settings() {
    [[ -z ${PIP_CERT:-} ]] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$PIP_CERT}"
    [[ -z ${PIP_DEFAULT_TIMEOUT:-} ]] || export UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-$PIP_DEFAULT_TIMEOUT}"
    [[ -z ${PIP_INDEX_URL:-} ]] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}"
    [[ -z ${PIP_EXTRA_INDEX_URL:-} ]] || export UV_INDEX="${UV_INDEX:-$PIP_EXTRA_INDEX_URL}"
}

uv_install() { "$venv/bin/uv" pip install --python "$venv/bin/python" --no-deps "$@" || failed_install; }

# The registry's PyTorch is the CUDA build, which cuda.lock wants. cpu.lock takes PyTorch, and nothing else, from PyTorch's
# CPU index first: that index need not have the other pins. uv's own guess, `auto`, is not asked: it takes the newest CUDA that the
# driver runs, or XPU where it sees an Intel display adapter, and neither fits libraries locked with --no-deps.
install_packages() {
    local backend=${OAPL_TORCH_BACKEND:-}
    if [[ -n ${PIP_FIND_LINKS:-} ]]; then
        : # PyTorch lies there, or in the registry
    elif [[ $lock == cpu || -n $backend ]]; then
        uv_install --torch-backend "${backend:-cpu}" -r <(grep -E '^torch(vision|audio|codec)?==' "requirements/$lock.lock")
    fi
    install_lock "$lock"
}

install_lock() {
    local places=() place
    for place in ${PIP_FIND_LINKS:-}; do places+=(--find-links "$place"); done
    uv_install --compile-bytecode -r "requirements/$1.lock" "${places[@]}"
}

# Tools, and reasoning-gym (docs/data.md), of which one package is compiled; where that fails, all but its tasks works.
install_work() {
    say "$(wc -l <requirements/work.lock) packages more of requirements/work.lock, for checks and tests"
    install_lock work
    "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps -r requirements/gym.lock ||
        say "without reasoning-gym: of what it needs, pycosat must be compiled (gcc and Python's headers). Once they are" \
            "there: $venv/bin/uv pip install --no-deps -r requirements/gym.lock"
    write_stamp work "$(work_key)"
}

install_environment() {
    local python started=$SECONDS
    python=$(find_python)
    check_wheels
    case $lock in cpu) check_disk 5 ;; *) check_disk 14 ;; esac
    say "$("$python" -V), $(wc -l <"requirements/$lock.lock") packages of requirements/$lock.lock into $venv"
    check_libraries "$python"
    make_venv "$python"
    install_packages
    "$venv/bin/python" -c "import torch, sys; sys.exit((torch.version.cuda is None) != ('$lock' == 'cpu'))" ||
        fail "the PyTorch that was installed is not the $lock build; see OAPL_LOCK, OAPL_TORCH_BACKEND and PIP_FIND_LINKS"
    write_stamp environment "$(environment_key "$venv/bin/python")"
    say "environment ready after $(( SECONDS - started )) s"
}

install_project() {
    uv_install --quiet --no-build-isolation --editable .
    write_stamp project "$(project_key)"
}

needs_environment() {
    [[ ! -x $venv/bin/python ]] || ! stamp_is environment "$(environment_key "${OAPL_PYTHON:-$venv/bin/python}")"
}

needs_work() { [[ $wanted == work ]] && ! stamp_is work "$(work_key)"; }

needs_project() { ! stamp_is project "$(project_key)"; }

lock=$(choose_lock)
if needs_environment || needs_project || needs_work; then
    [[ -w . ]] || fail "$(pwd) is not writable"
    if command -v flock >/dev/null; then # two set-ups at once would delete each other's files
        exec 9>.setup.lock
        flock 9
    fi
    carry_pip_settings
    if needs_environment; then install_environment; fi
    if needs_project; then install_project; fi
    if needs_work; then install_work; fi
fi
