#!/bin/sh
# Makes the virtual environment "$1" with the first Python that is new enough: $PYTHON, then the usual names.
set -eu

venv=$1

say() { printf '%s\n' "$*" >&2; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python; do
        if [ -n "$candidate" ] && is_new_enough "$candidate"; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

# Debian and Ubuntu ship Python without the module that puts pip into a new environment.
apt_install_venv() {
    package=$("$1" -c 'import sys; print(f"python3.{sys.version_info.minor}-venv")')
    say "installing $package …"
    apt-get update -qq </dev/null >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" </dev/null >&2
}

if [ -x "$venv/bin/python" ] && is_new_enough "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    exit 0
fi
if ! python=$(find_python); then
    say "Python 3.11 or newer is needed, and none was found; install one, or name it: make PYTHON=/path/to/python3.12 …"
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || ! apt_install_venv "$python"; then
        say "$python cannot make virtual environments; install its venv module (Debian, Ubuntu: sudo apt-get install python3-venv)"
        exit 1
    fi
fi
say "making $venv with $("$python" --version) …"
"$python" -m venv --clear "$venv"
