#!/bin/sh
# Stands between cargo and rustc (RUSTC_WORKSPACE_WRAPPER) and compiles the library with race detection. The detector's
# options count as unstable, so this crate alone, not its dependencies, is allowed to use unstable options.
set -eu
rustc=$1
shift
case " $* " in
*" --crate-name deepep "*)
    flags=-Zsanitizer=thread
    if "$rustc" -C help | grep -q unsafe-allow-abi-mismatch; then
        flags="$flags -Cunsafe-allow-abi-mismatch=sanitizer" # the standard library is not compiled this way
    fi
    # shellcheck disable=SC2086
    RUSTC_BOOTSTRAP=1 exec "$rustc" "$@" $flags
    ;;
*) exec "$rustc" "$@" ;;
esac
