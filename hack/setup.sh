#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Brings what a fresh Debian 12 machine lacks to build, test and run Weir:
# Debian packages, and a Go toolchain if there is none that is new enough.
# Says what it did; does nothing, quickly, when nothing is missing.
set -eu

cd "$(dirname "$0")/.."
cache=${WEIR_CACHE:-$HOME/.cache/weir}
# The toolchain that is brought when the machine's Go is older than go.mod asks for.
toolchain=1.26.8

# To build Weir and run a lab, as make demo does.
packages="gcc libc6-dev make git ca-certificates curl jq
 containerd runc debootstrap busybox-static
 iproute2 nftables iptables conntrack ipset ethtool tcpdump socat iputils-ping procps util-linux bird2"
# To change Weir and test it: the compiler of the eBPF programs, of which the tree has the objects,
# a tool to look at them, a second libc, another router to speak BGP with, and a collector of IPFIX. WEIR_SETUP=lab leaves these out.
[ "${WEIR_SETUP:-}" = lab ] || packages="$packages clang-19 llvm-19 libbpf-dev bpftool linux-libc-dev musl-tools frr nfdump"
packages="$packages ${WEIR_SETUP_MORE:-}"

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

missing_packages() {
	# One question for all: dpkg-query leaves out what it does not know.
	installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' $packages 2>/dev/null | sed -n 's/ installed$//p')
	for p in $packages; do
		case "
$installed
" in
		*"
$p
"*) ;;
		*) printf '%s ' "$p" ;;
		esac
	done
}

# Packages with services are installed without starting them: a policy-rc.d that
# refuses, unless the machine has one of its own.
guard=/usr/sbin/policy-rc.d
ours=
guard_services() {
	[ ! -e $guard ] || return 0
	ours=1
	printf '#!/bin/sh\nexit 101\n' >$guard
	chmod 755 $guard
}
cleanup() {
	[ -z "$ours" ] || rm -f $guard
	ours=
	[ -z "${part:-}" ] || { chmod -R u+w "$part" 2>/dev/null || :; rm -rf "$part"; }
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# again CMD …: runs a command up to four times, with growing pauses: mirrors are away for a moment, another apt holds its lock.
again() {
	for pause in 5 15 45 0; do
		"$@" && return 0
		[ $pause = 0 ] || { say "failed, trying again in $pause s: $*" >&2; sleep $pause; }
	done
	return 1
}

listed=
apt_update() { # once
	[ -z "$listed" ] || return 0
	again apt-get -qq -o DPkg::Lock::Timeout=120 update || die "apt-get update failed; is there a network, and are the sources right?"
	listed=1
}

apt_install() {
	[ "$(id -u)" = 0 ] || die "missing Debian packages: $*. Run this as root."
	guard_services
	export DEBIAN_FRONTEND=noninteractive
	say "installing $*"
	apt_update
	again apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3 install "$@" >/dev/null ||
		die "apt-get install failed: see above"
	say "installed $*"
}

# version_of GO: its version without the "go", or nothing.
version_of() { GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null | sed -n 's/^go\([0-9.]*\).*/\1/p'; }

# at_least HAVE WANT
at_least() { [ -n "$1" ] && [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n1)" = "$2" ]; }

find_go() { # prints the first Go that is new enough
	for g in "$cache/go/bin/go" "$(command -v go 2>/dev/null || :)" /usr/local/go/bin/go; do
		[ -x "$g" ] && at_least "$(version_of "$g")" "$want" && { printf '%s\n' "$g"; return 0; }
	done
	return 1
}

install_go() {
	arch=$(dpkg --print-architecture)
	old=$(command -v go 2>/dev/null || :)
	if [ -z "$old" ]; then
		apt_install golang-go
		old=/usr/bin/go
	fi
	say "fetching Go $toolchain through $(version_of "$old" | sed 's/^/Go /')"
	mkdir -p "$cache"
	dir=$(cd / && again env GOTOOLCHAIN=local GOFLAGS=-modcacherw "$old" mod download -json "golang.org/toolchain@v0.0.1-go$toolchain.linux-$arch" |
		sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
	[ -d "${dir:-}" ] || die "go mod download did not bring the toolchain: see above"
	part=$cache/go.part
	rm -rf "$part"
	cp -r "$dir" "$part"
	chmod -R u+w "$part"
	# A module's archive does not hold the bits that make programs executable.
	chmod 755 "$part"/bin/* "$part"/pkg/tool/*/*
	rm -rf "$cache/go"
	mv "$part" "$cache/go"
	part=
	say "installed Go $toolchain in $cache/go (in front of PATH in the Makefile; by hand: export PATH=$cache/go/bin:\$PATH)"
}

# install_programs PACKAGE FILE …: takes programs out of a Debian package, which would bring a server
# that starts with the machine, too.
install_programs() {
	package=$1
	shift
	say "fetching $package"
	mkdir -p "$cache"
	part=$(mktemp -d)
	chown _apt "$part" # who fetches
	apt_update
	(cd "$part" && again apt-get -qq -o Acquire::Retries=3 download "$package") || die "apt-get download $package failed: see above"
	for file; do
		name=${file##*/}
		dpkg-deb --fsys-tarfile "$part/$package"_*.deb | tar -xO ".$file" >"$part/$name" || die "Debian's $package has no $file"
		chmod 755 "$part/$name"
		mv "$part/$name" "$cache/$name.part"
		mv "$cache/$name.part" "$cache/$name"
		say "installed $name in $cache"
	done
	rm -rf "$part"
	part=
}

did=
missing=$(missing_packages)
if [ -n "$missing" ]; then
	# shellcheck disable=SC2086 # a list
	apt_install $missing
	did=1
fi
want=$(sed -n 's/^go \([0-9.]*\).*/\1/p' go.mod)
[ -n "$want" ] || die "go.mod names no Go version"
if ! go=$(find_go); then
	install_go
	go=$(find_go) || die "the Go that was brought is older than go.mod's $want: raise the version in this script"
	did=1
fi
# To build the page in the browser. Some packages of Node.js have npm in them, Debian's has not.
if [ "${WEIR_SETUP:-}" != lab ] && ! { command -v node && command -v npm; } >/dev/null; then
	apt_install nodejs npm
	did=1
fi
# To test alert rules.
if [ "${WEIR_SETUP:-}" != lab ] && [ ! -x "$cache/promtool" ] && ! command -v promtool >/dev/null; then
	install_programs prometheus /usr/bin/promtool
	did=1
fi
# BIRD 1.6, for which Calico writes its configuration: for labs with Calico and BGP. Its package
# excludes that of BIRD 2.
if [ -n "${WEIR_SETUP_BIRD1:-}" ] && [ ! -x "$cache/bird" ]; then
	install_programs bird /usr/sbin/bird
	did=1
fi
# OpenBGPD, one more router to speak BGP with.
if [ "${WEIR_SETUP:-}" != lab ] && ! { [ -x "$cache/bgpd" ] && [ -x "$cache/bgpctl" ]; }; then
	install_programs openbgpd /usr/sbin/bgpd /usr/sbin/bgpctl
	did=1
fi
[ -n "$did" ] || say "nothing is missing (Go $(version_of "$go") at $go)"
