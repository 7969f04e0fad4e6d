// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"log/slog"

	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
)

// ErrRefused is the error of programs that the kernel's verifier does not take: another data plane
// has to take their place.
var ErrRefused = object.ErrRefused

// Preload loads what New and the first Apply of a driver with these options need, where they find
// maps of another layout alone, while another driver works by these. Nothing that it sees changes.
// It returns nil where there is nothing to load before.
func Preload(o Options) (*object.Preloaded, error) {
	if o.BPFFS == "" {
		return nil, nil
	}
	return object.Preload(o.BPFFS, o.Sizes, o.constants(), o.Logger)
}

// Try loads the programs of both families and forgets them, to say whether this kernel takes them;
// nothing is attached. The error is ErrRefused where its verifier does not.
func Try(log *slog.Logger) error {
	small := map[string]uint32{"weir_flows": 1024, "weir_flows_new": 1024}
	four, err := object.Load(nil, "", small, object.Constants{}, log)
	if err != nil {
		return err
	}
	defer four.Close()
	six, err := object.Load(four, "", nil, object.Constants{}, log)
	if err != nil {
		return fmt.Errorf("of IPv6: %w", err)
	}
	six.Close()
	return nil
}
