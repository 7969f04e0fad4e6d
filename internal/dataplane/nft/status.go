package nft

import "slices"

// Status is what a driver knows about itself.
type Status struct {
	Writes   uint64 // operations of nftables since the start
	Problems []string
}

// Status returns a snapshot.
func (d *Driver) Status() Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := Status{Problems: slices.Clone(d.problems)}
	for _, t := range d.tables {
		st.Writes += t.writes
	}
	return st
}
