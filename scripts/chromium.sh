#!/bin/sh
# Prints the path of a Chromium or Chrome that needs no display: that of $CHROMIUM, then PATH, then the usual
# folders. Installs one when run as root on Debian, within two minutes; with the argument `find` it only looks.
# Without any it says which command installs one, and fails.
set -eu

say() { printf '%s\n' "$*" >&2; }

find_chromium() {
    for name in "${CHROMIUM:-}" chromium-headless-shell chromium chromium-browser google-chrome \
        google-chrome-stable "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"; do
        # Ubuntu's chromium-browser is a script that asks for a snap
        if [ -n "$name" ] && found=$(command -v "$name") && "$found" --version >/dev/null 2>&1; then
            printf '%s\n' "$found"
            return 0
        fi
    done
    return 1
}

apt_install_chromium() {
    say "installing a headless Chromium (a test opens the page of \`deltajoin ui\` in it) …"
    timeout 120 sh -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends -o DPkg::Lock::Timeout=60 chromium-headless-shell' </dev/null >&2
}

if find_chromium; then
    exit 0
fi
if [ "${1:-}" = find ]; then
    exit 1
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt_install_chromium && find_chromium; then
    exit 0
fi
say "No Chromium was found by CHROMIUM or PATH; its test is skipped. To run it, install one, then try again:"
if [ "$(uname -s)" = Darwin ]; then
    say "    brew install --cask google-chrome"
else
    say "    sudo apt-get install -y chromium-headless-shell, or the package chromium of your system"
fi
exit 1
