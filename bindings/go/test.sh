#!/bin/sh
# Checks and tests the Go module; further arguments go to `go test`.
#
#   test.sh [ARGUMENTS]                  against the library of this source tree: cargo build --release comes first
#   test.sh --prefix PREFIX [ARGUMENTS]  against an installed library, found by pkg-config
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

if [ "${1:-}" = --prefix ]; then
    prefix=$(cd "$2" && pwd)
    PKG_CONFIG_PATH=$prefix/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    LD_LIBRARY_PATH=$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export PKG_CONFIG_PATH LD_LIBRARY_PATH
    tags=
    shift 2
else
    target=${CARGO_TARGET_DIR:-$root/target}
    test -e "$target/release/libdeepep.so" || {
        echo "test.sh: no library in $target/release; run cargo build --release" >&2
        exit 1
    }
    target=$(cd "$target" && pwd)
    # The library is loaded by its soname, which cargo does not make a file of.
    mkdir -p "$target/go"
    ln -sf "$target/release/libdeepep.so" "$target/go/libdeepep.so"
    ln -sf libdeepep.so "$target/go/libdeepep.so.0"
    CGO_CFLAGS="${CGO_CFLAGS:--O2 -g} -I$root/include"
    CGO_LDFLAGS="${CGO_LDFLAGS:-} -L$target/go -Wl,-rpath,$target/go"
    export CGO_CFLAGS CGO_LDFLAGS
    tags=-tags=deepep_intree
fi

cd "$here"
unformatted=$(gofmt -l .)
test -z "$unformatted" || {
    echo "test.sh: gofmt would change $unformatted" >&2
    exit 1
}
go vet $tags ./...
# Without the cache: it does not know when the library has changed.
go test $tags -count=1 "$@" ./...
