#!/bin/sh
# Installs packages into the environment of the Python "$1"; the other arguments are those of `pip install`.
# uv does it, in a quarter of pip's time, with the index that pip is set to. Where uv cannot, pip does.
set -eu

python=$1
shift
tools=.venv/bin

say() { printf '%s\n' "$*" >&2; }

# What pip was told by its variable "$1", or by its file under the name "$2".
told() {
    eval "value=\${$1:-}"
    for section in global install; do
        [ -n "$value" ] || value=$("$tools/python" -m pip config get "$section.$2" 2>/dev/null || true)
    done
    printf '%s' "$value"
}

with_uv() {
    [ -z "$(told PIP_NO_INDEX no-index)" ] || return 1
    [ -x "$tools/uv" ] || "$tools/python" -m pip install --quiet --disable-pip-version-check --constraint requirements.lock uv || return 1
    index=$(told PIP_INDEX_URL index-url)
    more=$(told PIP_EXTRA_INDEX_URL extra-index-url)
    [ -z "$index" ] || export UV_DEFAULT_INDEX="$index"
    [ -z "$more" ] || export UV_INDEX="$more"
    UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180} "$tools/uv" pip install --quiet --python "$python" "$@"
}

if ! with_uv "$@"; then
    say "uv could not; pip installs, which takes some minutes …"
    "$tools/python" -m pip --python "$python" install --quiet --disable-pip-version-check --no-compile "$@"
fi
