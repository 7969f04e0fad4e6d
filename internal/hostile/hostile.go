// SPDX-License-Identifier: Apache-2.0

// Package hostile records which attacks the tests carried out, and whether they were held. A test
// of an attack is named TestHostile…, and calls Record for each attack, data plane and family that
// it covers; `make hostile` runs these tests, collects the rows into out/hostile.json, and fails
// when one is not held. For each attack there is a mutant in hack/mutation under which it succeeds.
package hostile

import (
	"encoding/json"
	"os"
	"sync"
	"testing"
)

// OutputVariable names the environment variable with the path of the file to which rows are
// appended, a JSON object a line. Nothing is recorded where it is not set.
const OutputVariable = "WEIR_HOSTILE_OUT"

// Who attacks (docs/design/security.md).
const (
	Pod        = "a" // a pod without privileges
	RawPod     = "b" // a pod with NET_RAW
	Tenant     = "c" // may edit the objects of a namespace
	Link       = "d" // a host on the nodes' link, or beyond a router
	Node       = "e" // a compromised node, or its token
	Operator   = "f" // a mistake of an operator
	Controller = "g" // a compromised controller
	Browser    = "h" // another user of an operator's machine, or a web page in an operator's browser
)

// What carries the attack's packets.
const (
	EBPF         = "ebpf"
	NFTables     = "nftables"
	ControlPlane = "control plane" // objects, tokens, sockets of the agent: no packet of a pod is looked at
)

// The families of addresses.
const (
	IPv4 = "IPv4"
	IPv6 = "IPv6"
	Both = "both" // the same code is run with addresses of both, or with none
)

// Row is an attack that a test carries out.
type Row struct {
	Attack string `json:"attack"` // a short sentence of the attacker's aim, the same as in hack/mutation
	Actor  string `json:"actor"`
	Plane  string `json:"plane"`
	Family string `json:"family"`
	Held   bool   `json:"held"`
	Test   string `json:"test"`
}

var mu sync.Mutex

// Record writes a row when the test has ended: held when it neither failed nor was skipped.
func Record(t testing.TB, attack, actor, plane, family string) {
	t.Helper()
	path := os.Getenv(OutputVariable)
	if path == "" {
		return
	}
	t.Cleanup(func() {
		line, err := json.Marshal(Row{Attack: attack, Actor: actor, Plane: plane, Family: family, Held: !t.Failed() && !t.Skipped(), Test: t.Name()})
		if err != nil {
			panic(err) // strings and a bool
		}
		mu.Lock()
		defer mu.Unlock()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			t.Errorf("recording an attack: %v", err)
			return
		}
		defer f.Close()
		if _, err := f.Write(append(line, '\n')); err != nil {
			t.Errorf("recording an attack: %v", err)
		}
	})
}
