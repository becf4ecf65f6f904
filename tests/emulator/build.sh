#!/usr/bin/env bash
# Makes the emulator: build.sh LIBRARY, where the name of the library is libcuda.so.1.
set -eu
library=$1
mkdir -p "$(dirname "$library")"
cd "$(dirname "$0")"
g++ -std=c++17 -O2 -g1 -fPIC -shared -fvisibility=hidden -Wall -Wextra -pthread \
    -Wl,-soname,libcuda.so.1 -o "$library.part" ./*.cpp driver/*.cpp -ldl
mv "$library.part" "$library" # whole, also for who is using the old one
