#!/bin/sh
# Installs the library, its headers, and what pkg-config and CMake need to find it.
#
#     bindings/install.sh PREFIX [DESTDIR]
#
# Everything lands under DESTDIR/PREFIX and may be moved from there. The library is $LIBRARY if that is set, else the
# release build of this source tree, which is made if it is missing.
set -eu

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: $0 PREFIX [DESTDIR]" >&2
    exit 2
fi
case $1 in
/*) ;;
*)
    echo "$0: PREFIX must begin with a slash, not $1" >&2
    exit 2
    ;;
esac
source=$(cd "$(dirname "$0")/.." && pwd)
target=${2:-}$1
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$source/Cargo.toml" | head -n 1)
soversion=${version%%.*}

library=${LIBRARY:-${CARGO_TARGET_DIR:-$source/target}/release/libdeepep.so}
if [ ! -f "$library" ]; then
    if [ -n "${LIBRARY:-}" ]; then
        echo "$0: there is no library $LIBRARY" >&2
        exit 1
    fi
    cargo build --release --lib --manifest-path "$source/Cargo.toml"
fi

fill() { # TEMPLATE FILE
    sed -e "s/@VERSION@/$version/g" -e "s/@SOVERSION@/$soversion/g" "$1" >"$2"
    chmod 644 "$2"
}

mkdir -p "$target/include" "$target/lib/pkgconfig" "$target/lib/cmake/deepep"
install -m 755 "$library" "$target/lib/libdeepep.so.$version"
ln -sf "libdeepep.so.$version" "$target/lib/libdeepep.so.$soversion"
ln -sf "libdeepep.so.$soversion" "$target/lib/libdeepep.so"
install -m 644 "$source/include/deep_ep.h" "$source/bindings/cpp/deep_ep.hpp" "$target/include/"
fill "$source/bindings/pkgconfig/deepep.pc.in" "$target/lib/pkgconfig/deepep.pc"
fill "$source/bindings/cmake/deepepConfig.cmake.in" "$target/lib/cmake/deepep/deepepConfig.cmake"
fill "$source/bindings/cmake/deepepConfigVersion.cmake.in" "$target/lib/cmake/deepep/deepepConfigVersion.cmake"
echo "libdeepep $version is installed in $target"
