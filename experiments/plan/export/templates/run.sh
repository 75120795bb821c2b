#!/usr/bin/env bash
# Compiles step.cc against ns-3 3.44 and runs it on the tables of this folder; arguments are the
# program's. Set before: NS3, the folder where ns-3 is installed.
set -euo pipefail
cd "$(dirname "$0")"
: "${NS3:?set it to the folder that holds include/ns3 and the libraries of ns-3 3.44}"
core=$(find -L "$NS3" -name 'libns3.44-core*.so' -print -quit)
: "${core:?no library of ns-3 3.44 under $NS3}"
folder=$(dirname "$core") kind=$(basename "$core" .so)
kind=${kind#libns3.44-core} # "", -default, -optimized: how it was built
libraries=()
for name in core network internet point-to-point traffic-control; do
  libraries+=("-lns3.44-$name$kind")
done
if [ step.cc -nt step ]; then
  # Only what the program uses must be there, not what optional modules of ns-3 link to.
  "${CXX:-c++}" -std=c++20 -O2 step.cc -o step -I"$NS3/include" -L"$folder" \
    -Wl,-rpath,"$folder" -Wl,--allow-shlib-undefined "${libraries[@]}"
fi
exec ./step "$@"
