#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# azure-cni.sh FOLDER: builds Azure's CNI plugin (azure-vnet) from its Go module, and the stand-in for
# its host service (azurecns, test/azurecni), into FOLDER.
set -eu
to=$(realpath "$1")
module=github.com/Azure/azure-container-networking
cd "$(dirname "$0")/../test/azurecni"
go mod download "$module"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$(go list -m -f '{{.Dir}}' "$module")" "$work/module"
chmod -R u+w "$work/module"
# The plugin deletes routes with NLM_F_EXCL. That bit is NLM_F_BULK where something is deleted, which
# Linux refuses for routes from 5.19 on; later versions of the plugin leave it out.
sed -i.was 's/flags = unix.NLM_F_EXCL | unix.NLM_F_ACK/flags = unix.NLM_F_ACK/' "$work/module/netlink/ip_linux.go"
if cmp -s "$work/module/netlink/ip_linux.go.was" "$work/module/netlink/ip_linux.go"; then
	echo "azure-cni: the plugin deletes routes otherwise than this knows" >&2
	exit 1
fi
cp go.mod go.sum "$work"
go mod edit -replace "$module=$work/module" "$work/go.mod"
go build -trimpath -modfile "$work/go.mod" -o "$to/azure-vnet" "$module/cni/network/plugin"
go build -trimpath -o "$to/azurecns" .
