// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"fmt"
	"log/slog"
	"time"

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

// Try has the kernel's verifier look at the programs of both families, to say whether this kernel
// takes them; nothing is attached. The error is ErrRefused where its verifier does not take them.
func Try(log *slog.Logger) error {
	return tryEach(log, func(time.Duration) error { return nil })
}

// maxPause bounds the pause after each program that is tried.
const maxPause = time.Second

// TryWithPauses is Try where nobody waits for the answer. After each program it leaves the
// processor to others for as long as that took: processes of pods that request no processor time
// get next to none while an agent works.
func TryWithPauses(ctx context.Context, log *slog.Logger) error {
	return tryEach(log, func(took time.Duration) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(took, maxPause)):
			return nil
		}
	})
}

// tryEach tries the programs one by one; after each it calls pause with what it took.
func tryEach(log *slog.Logger, pause func(took time.Duration) error) error {
	small := map[string]uint32{"weir_flows": 1024, "weir_flows_new": 1024}
	four, err := object.OpenMaps(nil, "", small, object.Constants{}, log)
	if err != nil {
		return err
	}
	defer four.Close()
	if err := four.TryEach(pause); err != nil {
		return err
	}
	six, err := object.OpenMaps(four, "", nil, object.Constants{}, log)
	if err != nil {
		return fmt.Errorf("of IPv6: %w", err)
	}
	defer six.Close()
	if err := six.TryEach(pause); err != nil {
		return fmt.Errorf("of IPv6: %w", err)
	}
	return nil
}
