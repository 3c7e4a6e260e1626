#!/bin/sh
# Makes a build and prints "<key> <node>": the name of its folder under $OPENSHELL_OUT and the Node to run it with.
# Progress goes to standard error, one line a step. Called by ./openshell; one at a time, others wait.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
out=${OPENSHELL_OUT:?}
oldest_node=24

say() { printf 'openshell: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

# `quietly npm ARGS FOLDER`: what npm says is shown only when it fails, and only its first lines. npm runs under the Node that it
# came with: under another it would look elsewhere for the machine's npmrc, where proxies and authorities are written.
path_of_npm=$PATH
quietly() {
  # shellcheck disable=SC2086
  if (cd "$3" && PATH=$path_of_npm && "$1" $2 --loglevel=error) >"$out/npm.log" 2>&1; then return 0; fi
  head -n 8 "$out/npm.log" >&2
  return 1
}

umask 022
mkdir -p "$out" || die "cannot write $out. Set XDG_CACHE_HOME to a folder that you may write"

# One build at a time; the kernel lets go of the lock when its holder ends, however it ends.
exec 9>"$out/lock"
if ! flock -n 9; then
  say "another openshell is preparing this checkout; waiting for it"
  flock 9
fi

# Everything the build reads decides its key: content, not times.
inputs() {
  cd "$root" && find openshell package.json package-lock.json packages proto native tools \( -name node_modules -o -name '*.test.ts' \) -prune \
    -o -type f -print | LC_ALL=C sort
}
started=$out/stamp.new
: >"$started"
key=$(cd "$root" && inputs | tr '\n' '\0' | xargs -0 sha256sum | sha256sum | cut -c1-16)

work=$root
if [ ! -w "$root" ]; then
  # Packages are installed and bundles made beside a copy of the sources.
  work=$out/source-$key
  if [ ! -d "$work" ]; then
    say "the checkout is read-only: building in $out"
    rm -rf "$out"/source-*
    mkdir -p "$work.part"
    (cd "$root" && { inputs; echo .npmrc; echo tools/node/.npmrc; } | sort -u | tar -cf - -T -) | tar -xf - -C "$work.part"
    mv "$work.part" "$work"
  fi
fi

node_is_new_enough() {
  [ -x "$1" ] && major=$("$1" -p 'process.versions.node.split(".")[0]' 2>/dev/null) && [ "${major:-0}" -ge "$oldest_node" ]
}
system_node=$(command -v node 2>/dev/null || true)
case $(uname -m) in x86_64) architecture=x64 ;; aarch64) architecture=arm64 ;; *) die "no pinned Node for $(uname -m). Install Node $oldest_node or newer" ;; esac
node=$work/tools/node/node_modules/node-linux-$architecture/bin/node
if node_is_new_enough "$node"; then :
elif [ -n "$system_node" ] && node_is_new_enough "$system_node"; then node=$system_node
else
  command -v npm >/dev/null || die "npm is missing. Install it (Debian: apt-get install npm), or Node $oldest_node or newer"
  version=none
  [ -z "$system_node" ] || version=$("$system_node" -v 2>/dev/null) || version="one that does not start"
  say "fetching Node (this system has $version, $oldest_node or newer is needed)"
  quietly npm ci "$work/tools/node" || die "fetching Node failed. Check that npm reaches its registry"
  # Packages for one architecture are optional to npm, so it fails in silence.
  [ -x "$node" ] || die "npm fetched no Node for $architecture. Check that npm reaches its registry and can write its cache (npm config get cache)"
  node_is_new_enough "$node" || die "the fetched Node does not start: $node"
fi
PATH=$(dirname -- "$node"):$PATH
export PATH

# Packages: what the lock file says, and the tools for tests only where somebody asked for them ($OPENSHELL_DEVELOPMENT, or before).
omit=--omit=dev
if [ -n "${OPENSHELL_DEVELOPMENT:-}" ] || [ -d "$work/node_modules/vitest" ]; then omit=; fi
installed=$work/node_modules/.package-lock.json
if [ ! -f "$installed" ] || [ "$work/package-lock.json" -nt "$installed" ] || { [ -z "$omit" ] && [ ! -d "$work/node_modules/vitest" ]; }; then
  say "installing packages"
  command -v npm >/dev/null || die "npm is missing. Install it (Debian: apt-get install npm)"
  quietly npm "ci $omit" "$work" || die "installing packages failed. Check that npm reaches its registry"
fi

if [ ! -f "$out/$key/cli.mjs" ]; then
  # What a build that was interrupted left; the lock is ours.
  rm -rf "$out"/*.part
  mkdir -p "$out/$key.part/native"
  say "building the native parts"
  sh "$work/native/build.sh" "$out/$key.part/native" "$work/node_modules/node-api-headers/include" >&2 || exit 1
  say "bundling"
  node "$work/tools/build.ts" "$out/$key.part" >&2 || die "bundling failed"
  rm -rf "${out:?}/$key"
  mv "$out/$key.part" "$out/$key"
fi

# Old builds go, but the last two others, and those that a running gateway may still load parts of.
ls -1dt "$out"/*/cli.mjs 2>/dev/null | tail -n +4 | while read -r old; do
  printf %s "${old%/cli.mjs}/" | grep -qsF -f - /proc/[0-9]*/cmdline || rm -rf "${old%/cli.mjs}"
done

# The stamp carries the time at which reading began: a file edited since then makes it stale again.
printf '%s %s\n' "$key" "$node" >"$out/stamp.tmp"
touch -r "$started" "$out/stamp.tmp"
rm -f "$started"
mv "$out/stamp.tmp" "$out/stamp"
cat "$out/stamp"
