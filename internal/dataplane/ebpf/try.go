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
