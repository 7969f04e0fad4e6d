#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Brings the routers of a newer Debian than this machine's, with the libraries that they need, into a
# folder, from which tests start them by chroot: the archive's packages are unpacked there and
# nothing of them is run or installed. Says what it did; does nothing, quickly, when they are there.
#
#   hack/routers.sh [folder]
set -eu

suite=trixie
packages="bird3 frr openbgpd"
root=${1:-${WEIR_CACHE:-$HOME/.cache/weir}/routers}

say() { printf 'routers: %s\n' "$*"; }
die() { printf 'routers: %s\n' "$*" >&2; exit 1; }

mark=$root/.packages
if [ "$(cat "$mark" 2>/dev/null)" = "$suite $packages" ]; then
	say "nothing is missing ($root)"
	exit 0
fi
[ "$(id -u)" = 0 ] || die "unpacking packages with their owners needs root"
part=$root.part
trap 'rm -rf "$part"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
rm -rf "$part"
mkdir -p "$part/apt/lists/partial" "$part/apt/archives/partial" "$part/root"
: >"$part/apt/status"
# Where this machine gets its own packages.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $(. /etc/os-release && echo "$VERSION_CODENAME")" 2>/dev/null | head -n1)
cat >"$part/apt/sources.list" <<EOF
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:-http://deb.debian.org/debian} $suite main
EOF
cat >"$part/apt/conf" <<EOF
Dir::State "$part/apt";
Dir::State::status "$part/apt/status";
Dir::State::lists "$part/apt/lists";
Dir::Cache "$part/apt";
Dir::Cache::archives "$part/apt/archives";
Dir::Etc::sourcelist "$part/apt/sources.list";
Dir::Etc::sourceparts "-";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Retries "3";
EOF
say "fetching $packages of Debian $suite, with what they need"
export APT_CONFIG="$part/apt/conf"
apt-get -qq update || die "apt-get update failed: see above"
# shellcheck disable=SC2086 # a list
apt-get -qq -y --download-only install $packages >/dev/null || die "apt-get failed: see above"
for deb in "$part"/apt/archives/*.deb; do
	dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$part/root" || die "unpacking $deb failed"
done
# What base-files would bring.
for dir in bin sbin lib lib64; do
	[ -e "$part/root/$dir" ] || ln -s "usr/$dir" "$part/root/$dir"
done
mkdir -p "$part/root/proc" "$part/root/dev" "$part/root/tmp" "$part/root/run" "$part/root/var/tmp" "$part/root/var/lib/frr"
printf 'root:x:0:0::/:/bin/false\n' >"$part/root/etc/passwd"
printf 'root:x:0:\nfrrvty:x:997:root\n' >"$part/root/etc/group"
# For vtysh.
printf 'auth sufficient pam_permit.so\naccount sufficient pam_permit.so\n' | tee "$part/root/etc/pam.d/other" >"$part/root/etc/pam.d/frr"
printf '%s\n' "$suite $packages" >"$part/root/.packages"
rm -rf "$root"
mv "$part/root" "$root"
say "brought $(cd "$root" && ls usr/sbin/bird usr/sbin/bgpd usr/lib/frr/bgpd 2>/dev/null | tr '\n' ' ')into $root"
