// SPDX-License-Identifier: Apache-2.0

package flowhandover

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
)

// exportNames hands on what programs have noted of domain names; root is the folder of pins.
func exportNames(root string, to Successor) error {
	m, err := ebpf.LoadPinnedMap(filepath.Join(bpffs.MapsDir(root), "weir_names"), &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening the addresses of domain names: %w", err)
	}
	defer m.Close()
	all, err := flowtable.Told(m)
	return errors.Join(err, to.Learn(all))
}
