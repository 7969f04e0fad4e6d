// SPDX-License-Identifier: Apache-2.0

// Package process is the program weir-wireguard: devices of wireguard-go on TUN, for nodes whose
// kernel has no WireGuard. The agent says by a file which devices there are to be (Spec), and gives
// them keys and peers by WireGuard's own interface (wgctrl). An agent that is killed or replaced is
// not noticed. What a device was given is kept on disk, and the TUN device outlives its process:
// one that is killed goes on where it was as soon as it starts again, with nobody's help, and
// meanwhile the device drops what it is given.
package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/weir-net/weir/internal/agent/statefile"
)

// Spec says which devices there are to be.
type Spec struct {
	Devices []Device `json:"devices"`
}

// Device is one of them.
type Device struct {
	Name string `json:"name"`
	MTU  int    `json:"mtu"`
}

// specFile is where the Spec is, below the agent's folder of what does not survive a reboot.
func specFile(runDir string) string { return filepath.Join(runDir, "wireguard.json") }

// WriteSpec writes it where it differs.
func WriteSpec(runDir string, s Spec) error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("writing the devices of WireGuard: %w", err)
	}
	if have, err := os.ReadFile(specFile(runDir)); err == nil && bytes.Equal(have, data) {
		return nil
	}
	return statefile.Write(specFile(runDir), data, 0o600)
}

// ReadSpec reads it; none is no devices.
func ReadSpec(runDir string) (s Spec, err error) {
	data, err := os.ReadFile(specFile(runDir))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return s, fmt.Errorf("reading which devices of WireGuard there are to be: %w", err)
	}
	return s, nil
}
