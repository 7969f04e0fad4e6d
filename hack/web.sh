#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the page in the browser from web/ into internal/ui/page/dist. What npm brings is kept in the
# cache, one folder for each package-lock.json, and never in the tree; none of its scripts is run.
#
#   hack/web.sh            check the types, and build
#   hack/web.sh modules    bring the modules alone, and print the folder that they are in
set -eu

cd "$(dirname "$0")/.."
root=$(pwd)
cache=${WEIR_CACHE:-$HOME/.cache/weir}

say() { printf 'web: %s\n' "$*" >&2; }
die() { printf 'web: %s\n' "$*" >&2; exit 1; }

command -v npm >/dev/null || die "npm is missing: make setup brings it"
lock=$(cat web/package.json web/package-lock.json | sha256sum | cut -c1-16)
dir=$cache/web/$lock
part=
build=
trap 'rm -rf ${part:+"$part"} ${build:+"$build"}' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
if [ ! -d "$dir" ]; then
	mkdir -p "$cache/web"
	part=$(mktemp -d "$cache/web/part.XXXXXX")
	cp web/package.json web/package-lock.json "$part"
	say "fetching the modules of web/package-lock.json"
	(cd "$part" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2) || die "npm ci failed: see above"
	mv -T "$part" "$dir" 2>/dev/null || [ -d "$dir" ] || die "cannot keep the modules in $dir" # somebody else was first
fi
if [ "${1:-}" = modules ]; then
	printf '%s\n' "$dir/node_modules"
	exit 0
fi
# Below the modules, so that they are found from there.
build=$(mktemp -d "$dir/build.XXXXXX")
cp -r web/. "$build"
rm -rf "$build/node_modules"
cd "$build"
../node_modules/.bin/tsc --noEmit
../node_modules/.bin/vite build --logLevel warn --outDir dist
rm -rf "$root/internal/ui/page/dist"
cp -r dist "$root/internal/ui/page/dist"
