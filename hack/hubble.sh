#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the hubble CLI and hubble-relay of Cilium as they are, from its Go module, for tests: go install
# does not, because the module replaces another one. Does nothing, quickly, when both are there.
#
#   hack/hubble.sh [file]
#
# The file is the CLI's; hubble-relay is next to it.
set -eu

version=1.20.2
to=${1:-${WEIR_CACHE:-$HOME/.cache/weir}/hubble-cli}
relay=$(dirname "$to")/hubble-relay

say() { printf 'hubble: %s\n' "$*"; }
die() { printf 'hubble: %s\n' "$*" >&2; exit 1; }

# there FILE: is it what it is to be?
there() { [ -x "$1" ] && [ "$(cat "$1.version" 2>/dev/null)" = "$version" ]; }

if there "$to" && there "$relay"; then
	say "nothing is missing ($to, $relay)"
	exit 0
fi
mkdir -p "$(dirname "$to")"
trap 'rm -f "$to.part" "$relay.part"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
dir=$(cd / && go mod download -json "github.com/cilium/cilium@v$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
[ -d "${dir:-}" ] || die "go mod download did not bring github.com/cilium/cilium@v$version: see above"

# bring FILE PACKAGE
bring() {
	there "$1" && return
	say "building $2 from github.com/cilium/cilium@v$version"
	(cd "$dir" && go build -mod=readonly -trimpath -o "$1.part" "$2") || die "it does not build: see above"
	mv "$1.part" "$1"
	printf '%s\n' "$version" >"$1.version"
	say "built $1"
}

bring "$to" ./hubble
bring "$relay" ./hubble-relay
