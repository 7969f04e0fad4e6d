package nft

import (
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// machine is what a node has beside tables: devices, routes, and settings of the kernel.
type machine struct{}

// prepare makes what tables and routes refer to.
func (m *machine) prepare(s *nodestate.State) []error {
	var errs []error
	if _, err := kernel.SetSysctl(1, "net", "ipv4", "ip_forward"); err != nil {
		errs = append(errs, &dataplane.KeyError{Table: "devices", Key: "ip_forward", Err: err})
	}
	return errs
}

// route leads packets where the state says.
func (m *machine) route(*nodestate.State) []error { return nil }

// remove takes devices and routes away.
func (m *machine) remove() []error { return nil }
