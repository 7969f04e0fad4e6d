// SPDX-License-Identifier: Apache-2.0

package nodestate

// Table names a part of a State.
type Table uint32

// The tables.
const (
	TableSettings Table = 1 << iota
	TableAddrs
	TableRoutes
	TableServices // Frontends, Backends, SourceRanges, HealthChecks, Refused
	TablePolicy   // Peers, PeerCIDRs, Policy
	TableClients
	TableRules
	TableAnnounced
	TableStaged // Staged, HostStaged, Unfit, Overdrawn
	TableWireGuard
	TableBGP
	TableQoS
	TableGateways
	TableNames
	TableSources
	TableFloating

	AllTables Table = 1<<iota - 1
)

// Keys is a hint of what may have changed since the state that was applied before. To ignore it is
// slower, never wrong. Narrower hints take their place here when the fan-out needs them.
type Keys struct {
	Tables Table
}

// All says that anything may have changed.
func All() Keys { return Keys{Tables: AllTables} }

// Has reports whether the table may have changed.
func (k Keys) Has(t Table) bool { return k.Tables&t != 0 }
