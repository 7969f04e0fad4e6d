// SPDX-License-Identifier: Apache-2.0

package bpffs

import (
	"path/filepath"
	"strconv"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

// The families as logs and metrics name them.
const (
	IPv4 = "ipv4"
	IPv6 = "ipv6"
)

// Folders are the names of the folders of a family's maps, in that of the layout.
var Folders = map[string]string{IPv4: "maps", IPv6: "maps6"}

// MapsDir is where maps of this layout are pinned, below the driver's folder on bpffs. Maps6Dir is
// where those of IPv6 are.
func MapsDir(root string) string  { return FamilyDir(root, IPv4) }
func Maps6Dir(root string) string { return FamilyDir(root, IPv6) }

// FamilyDir is where the maps of a family are pinned.
func FamilyDir(root, family string) string {
	return filepath.Join(root, strconv.Itoa(abi.Number), Folders[family])
}

// LinksDir holds the pinned links. It does not carry the number of the layout: a link outlives it,
// and its program is replaced in place.
func LinksDir(root string) string { return filepath.Join(root, "links") }
