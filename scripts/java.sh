#!/bin/sh
# Prints the home of a Java that Spark 4.3 runs on (17 or newer): JAVA_HOME, then PATH, then the usual
# folders. Installs one when run as root on Debian or Ubuntu; else says which command does, and fails.
set -eu

needed=17

say() { printf '%s\n' "$*" >&2; }

# The home of the Java program "$1", if that is new enough.
home_of() {
    settings=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    version=$(printf '%s\n' "$settings" | sed -n 's/^ *java\.specification\.version = //p')
    case "$version" in
        '' | *[!0-9]*) return 1 ;;      # "1.8" has a dot, and is too old
    esac
    [ "$version" -ge "$needed" ] || return 1
    printf '%s\n' "$settings" | sed -n 's/^ *java\.home = //p'
}

find_java() {
    for candidate in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" \
        /usr/lib/jvm/*/bin/java /opt/homebrew/opt/openjdk*/bin/java /usr/local/opt/openjdk*/bin/java; do
        if [ -x "$candidate" ] && home_of "$candidate"; then
            return 0
        fi
    done
    return 1
}

# The JRE package that this Debian or Ubuntu offers: its long-supported versions first.
jre_package() {
    for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
        if apt-cache show "$package" >/dev/null 2>&1; then
            printf '%s\n' "$package"
            return 0
        fi
    done
    return 1
}

apt_install_java() {
    say "installing a headless Java runtime (Spark needs Java $needed or newer) …"
    apt-get update -qq </dev/null >&2
    package=$(jre_package) || return 1
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" </dev/null >&2
}

command_for_this_system() {
    if [ "$(uname -s)" = Darwin ]; then
        echo "brew install openjdk@17"
    elif command -v apt-get >/dev/null; then
        echo "sudo apt-get update && sudo apt-get install -y $(jre_package || echo default-jre-headless)"
    elif command -v dnf >/dev/null; then
        echo "sudo dnf install -y java-21-openjdk-headless"
    elif command -v pacman >/dev/null; then
        echo "sudo pacman -S jre17-openjdk-headless"
    elif command -v zypper >/dev/null; then
        echo "sudo zypper install -y java-17-openjdk-headless"
    elif command -v apk >/dev/null; then
        echo "sudo apk add openjdk17-jre-headless"
    else
        echo "install a Java runtime $needed or newer and set JAVA_HOME to it"
    fi
}

if find_java; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt_install_java && find_java; then
    exit 0
fi
say "Spark needs Java $needed or newer, and none was found by JAVA_HOME or PATH. Run this, then try again:"
say "    $(command_for_this_system)"
exit 1
