#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the hubble CLI of Cilium as it is, from its Go module, for tests: go install does not, because
# the module replaces another one. Does nothing, quickly, when it is there.
#
#   hack/hubble.sh [file]
set -eu

version=1.20.2
to=${1:-${WEIR_CACHE:-$HOME/.cache/weir}/hubble-cli}

say() { printf 'hubble: %s\n' "$*"; }
die() { printf 'hubble: %s\n' "$*" >&2; exit 1; }

if [ -x "$to" ] && [ "$(cat "$to.version" 2>/dev/null)" = "$version" ]; then
	say "nothing is missing ($to)"
	exit 0
fi
mkdir -p "$(dirname "$to")"
part=$to.part
trap 'rm -f "$part"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
dir=$(cd / && go mod download -json "github.com/cilium/cilium@v$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
[ -d "${dir:-}" ] || die "go mod download did not bring github.com/cilium/cilium@v$version: see above"
say "building it from github.com/cilium/cilium@v$version"
(cd "$dir" && go build -mod=readonly -trimpath -o "$part" ./hubble) || die "it does not build: see above"
mv "$part" "$to"
printf '%s\n' "$version" >"$to.version"
say "built $to"
