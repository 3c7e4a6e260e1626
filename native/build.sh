#!/bin/sh
# Builds openshell-init (static) and the Node addon: build.sh OUTPUT_FOLDER [NODE_API_INCLUDE_FOLDER]
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
out=${1:?usage: build.sh OUTPUT_FOLDER [NODE_API_INCLUDE_FOLDER]}
include=${2:-$here/../node_modules/node-api-headers/include}
cc=${CC:-cc}
say() { echo "build.sh: $1" >&2; exit 1; }

command -v "${cc%% *}" >/dev/null 2>&1 || say "no C compiler '$cc': install the Debian package gcc (apt-get install gcc libc6-dev)"
mkdir -p "$out"
out=$(CDPATH= cd -- "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo 'int main(void){return 0;}' >"$work/probe.c"
echo '#include <stdio.h>
int main(void){return puts("");}' >"$work/static.c"
$cc -o "$work/probe" "$work/probe.c" 2>/dev/null || say "'$cc' cannot link a program: install the Debian packages gcc and libc6-dev"
$cc -static -o "$work/static" "$work/static.c" 2>/dev/null || say "stdio.h or libc.a is missing: install the Debian package libc6-dev"
echo '#include <linux/openat2.h>
#include <sys/syscall.h>
int main(void){return SYS_landlock_restrict_self == 0;}' >"$work/kernel.c"
$cc -o "$work/kernel" "$work/kernel.c" 2>/dev/null || say "kernel headers are missing or older than 5.13: install the Debian package linux-libc-dev"
[ -f "$include/node_api.h" ] || say "node_api.h is missing in $include: run npm install (package node-api-headers)"

flags="-std=gnu11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -fstack-protector-strong -D_FORTIFY_SOURCE=2"
$cc $flags -static -ffunction-sections -Wl,--gc-sections,-z,relro,-z,now -s -o "$work/openshell-init" "$here"/init/*.c
$cc $flags -fPIC -shared -s -DNAPI_VERSION=8 -I"$include" -o "$work/openshell.node" "$here"/addon/*.c
# Renamed into place: a running copy is never written to.
mv -f "$work/openshell-init" "$out/openshell-init"
mv -f "$work/openshell.node" "$out/openshell.node"
