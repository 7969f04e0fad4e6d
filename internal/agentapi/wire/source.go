// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"path/filepath"
	"time"
)

// DefaultRunDir is the agent's run folder, in which its sockets are.
const DefaultRunDir = "/run/weir"

// SourcePath is the question whence an agent has the cluster, and how old that is: a Source.
const SourcePath = "/source"

// Source is its answer.
type Source struct {
	Node    string `json:"node"`
	Version string `json:"version"`
	// Fed: the cluster comes from fan-outs, at present from FanOut (host:port; empty = none is
	// connected). Otherwise it comes from the API server.
	Fed    bool   `json:"fed"`
	FanOut string `json:"fanOut,omitempty"`
	// Synced: all of it was read once.
	Synced bool `json:"synced"`
	// Connected: the source is in touch with the API server. Since is when that became so, or
	// ceased to be so because of Error.
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"`
	Error     string    `json:"error,omitempty"`
	// AsOf: what the agent has is how the API server had it then.
	AsOf time.Time `json:"asOf"`
}

// Socket is where an agent with this run folder is asked.
func Socket(runDir string) string { return filepath.Join(runDir, SocketName) }
