// SPDX-License-Identifier: Apache-2.0

package podlimits

import (
	"errors"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/dataplane/shape"
)

// Departures are the pods whose packets get times of departure, by their interfaces.
type Departures map[uint32]shape.Departure

// WriteDepartures makes the map what is wanted; links says that packets may wait at the uplinks.
// What a pod has used up begins anew when its entry changes, and with nothing else.
func WriteDepartures(l *object.Collection, want Departures, links bool) error {
	m := l.Maps[object.Departures]
	have := map[uint32]abi.WeirDeparture{}
	var k uint32
	var v abi.WeirDeparture
	all := m.Iterate()
	for all.Next(&k, &v) {
		have[k] = v
	}
	errs := []error{all.Err()}
	for k, d := range want {
		v := abi.WeirDeparture{Rate: d.Rate, Burst: uint64(d.Burst), Wait: uint64(d.Wait)}
		if links {
			v.Flags = abi.DepartureLinks
		}
		if is, ok := have[k]; !ok || is.Rate != v.Rate || is.Burst != v.Burst || is.Wait != v.Wait || is.Flags != v.Flags {
			errs = append(errs, m.Put(k, v))
		}
		delete(have, k)
	}
	for k := range have {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
