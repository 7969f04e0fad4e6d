// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"maps"
	"net/netip"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// listen writes whether somebody listens.
func (t *familyTables[A]) listen(on bool) error {
	v := t.current
	v.Flags &^= abi.SetEvents
	if on {
		v.Flags |= abi.SetEvents
	}
	if v == t.current {
		return nil
	}
	t.counts.quiet++
	return t.putSettings(v)
}

// changeFlags is Node.ChangeFlags for one family.
func (t *familyTables[A]) changeFlags(set, clear uint32) error {
	v := t.current
	v.Flags = v.Flags&^clear | set
	if v == t.current {
		return nil
	}
	t.counts.quiet++
	return t.putSettings(v)
}

// changing reports whether the settings say that a change is under way: see Node.Write.
func (t *familyTables[A]) changing() bool { return t.current.Flags&abi.SetChanging != 0 }

// settle takes back what writeSettings noted of a change.
func (t *familyTables[A]) settle() error {
	if !t.changing() {
		return nil
	}
	v := t.current
	v.Flags &^= abi.SetChanging
	return t.putSettings(v)
}

// writeSettings makes the settings equal to what the state says; the epoch stays. Host endpoints
// count for as long as there is one in their map; what pods may send to the node is, until a change
// is made, what both the old and the new setting allow. When they or, as pending says, other tables
// change, it notes that in them.
func (t *familyTables[A]) writeSettings(s *nodestate.State, m Machine, strict, pending bool) {
	t.uplinks.Desire(maps.All(m.Uplinks))
	v := renderSettings[A](s, m)
	v.Epoch = t.current.Epoch
	v.Flags |= t.current.Flags & abi.SetChanging
	if strict {
		v.Flags |= t.current.Flags & (abi.SetHosts | abi.SetUntracked | abi.SetToHostDrop | abi.SetToHostReturn)
	}
	changed := v != t.current
	if changed || pending {
		v.Flags |= abi.SetChanging
	}
	if v == t.current {
		t.settingsErr = nil
		return
	}
	if t.settingsErr = t.putSettings(v); t.settingsErr == nil && changed {
		t.counts.reevaluated++
	}
}

func (t *familyTables[A]) nextEpoch() error {
	v := t.current
	v.Epoch++
	v.Flags &^= abi.SetChanging
	if err := t.putSettings(v); err != nil {
		return &dataplane.KeyError{Table: "weir_settings", Key: "epoch", Err: err}
	}
	t.counts.epochs++
	return nil
}

// begins reports whether the settings, as an earlier run left them, let programs begin flows.
func (t *familyTables[A]) begins() bool {
	return t.current.Epoch != 0 && t.current.Flags&abi.SetHandOver == 0
}

func (t *familyTables[A]) devices() (host, tunnel int) {
	return int(t.current.HostIfindex), int(t.current.TunnelIfindex)
}

func (t *familyTables[A]) marks() bool { return t.current.Flags&abi.SetMarks != 0 }

func (t *familyTables[A]) evaluatesHosts() bool { return t.current.Flags&abi.SetHosts != 0 }

func (t *familyTables[A]) evaluatesUntracked() bool { return t.current.Flags&abi.SetUntracked != 0 }

func (t *familyTables[A]) epoch() uint32 { return t.current.Epoch }

// ShareLimits are the settings by which pods are held to their share of the table of connections.
func (t *familyTables[A]) ShareLimits() (each, most uint32) {
	return t.current.FlowsEach, t.current.FlowsMost
}

func (t *familyTables[A]) putSettings(v abi.Settings[A]) error {
	var zero uint32
	if err := t.settings.Update(&zero, unsafe.Pointer(&v), ebpf.UpdateAny); err != nil {
		return err
	}
	t.current = v
	if t.addrs.After != nil {
		t.addrs.After()
	}
	return nil
}

// renderSettings leaves the epoch 0.
func renderSettings[A abi.Address](s *nodestate.State, m Machine) abi.Settings[A] {
	c := s.Settings
	v := abi.Settings[A]{
		Flags: abi.FlagIf(c.DSR, abi.SetDSR) |
			abi.FlagIf(c.ConnectTime == model.ConnectTimeTCP || c.ConnectTime == model.ConnectTimeEnabled, abi.SetCTLBTCP) |
			abi.FlagIf(c.ConnectTime == model.ConnectTimeEnabled, abi.SetCTLBUDP) |
			abi.FlagIf(c.HostNAT, abi.SetHostNAT) |
			abi.FlagIf(m.Listening, abi.SetEvents) |
			abi.FlagIf(m.HandOver || c.HandOver, abi.SetHandOver) |
			abi.FlagIf(m.Apart, abi.SetApart) |
			abi.FlagIf(m.Marks, abi.SetMarks) |
			abi.FlagIf(len(s.HostEndpoints) > 0 || m.hostPolicy, abi.SetHosts) |
			abi.FlagIf(s.EvaluatesUntracked() || m.untracked, abi.SetUntracked) |
			abi.FlagIf(c.VXLANFromPods, abi.SetVXLANFromPods) |
			abi.FlagIf(c.IPIPFromPods, abi.SetIPIPFromPods) |
			ipipFlags[A](c) |
			abi.FlagIf(c.RPFStrict, abi.SetRPFStrict) |
			abi.FlagIf(c.Chained, abi.SetChained) |
			abi.FlagIf(c.Gateways, abi.SetGateways) |
			abi.FlagIf(c.Floating, abi.SetFloating) |
			abi.FlagIf(c.ToHost == model.ToHostDrop, abi.SetToHostDrop) |
			abi.FlagIf(c.ToHost == model.ToHostReturn, abi.SetToHostReturn) |
			abi.SetPorts, // tables keep weir_ports
		Node: abi.ToAddr[A](nodeOf[A](c)), TunnelIfindex: uint32(m.Tunnel), Vni: c.Tunnel.VNI,
		SnatMin: c.SNATFirst, SnatMax: c.SNATLast, HostNetns: m.HostNetns,
		PerSecond: m.Clock.perThousandSeconds(), TunnelMtu: abi.TunnelMTU[A](c), IpipMtu: abi.IPIPMTU[A](c),
		HostIfindex: uint32(m.Host), TunnelPort: abi.Be16(c.Tunnel.Port),
		DsrPatience: m.Clock.fineUnits(c.DSRTimes.Patience),
	}
	t := c.Timeouts
	v.Timeouts[abi.TimeoutTCPSyn] = m.Clock.Units(t.TCPSynSent)
	v.Timeouts[abi.TimeoutTCPEst] = m.Clock.Units(t.TCPEstablished)
	v.Timeouts[abi.TimeoutTCPClosing] = m.Clock.Units(t.TCPReset)
	v.Timeouts[abi.TimeoutTCPFins] = m.Clock.Units(t.TCPFins)
	v.Timeouts[abi.TimeoutUDP] = m.Clock.Units(t.UDP)
	v.Timeouts[abi.TimeoutICMP] = m.Clock.Units(t.ICMP)
	v.Timeouts[abi.TimeoutOther] = m.Clock.Units(t.Generic)
	if t.Fragment > 0 {
		v.Timeouts[abi.TimeoutFrag] = m.Clock.Units(t.Fragment)
	}
	room := m.Flows
	if room == 0 {
		room = c.MaxFlows
	}
	v.FlowsMost, v.FlowsEach = uint32(room-room/16), uint32(room/8)
	v.Timeouts[abi.TimeoutDSRTries] = m.Clock.Units(c.DSRTimes.Tries)
	v.Timeouts[abi.TimeoutDSRRetry] = m.Clock.Units(c.DSRTimes.Retry)
	return v
}

// ipipFlags are of IPv4 alone.
func ipipFlags[A abi.Address](c nodestate.Settings) uint32 {
	if abi.Carries[A](netip.IPv6Unspecified()) {
		return 0
	}
	return abi.FlagIf(c.IPIP.Accept, abi.SetIPIP) | abi.FlagIf(c.IPIP.HandOn, abi.SetIPIPNodes)
}

// nodeOf is the node's primary address of the family.
func nodeOf[A abi.Address](c nodestate.Settings) netip.Addr {
	if abi.Carries[A](c.Node6) {
		return c.Node6
	}
	return c.Node
}

// Timeouts returns the time-outs of flows by enum timeout, in units of the programs' clock.
func Timeouts(s *nodestate.State, m Machine) [abi.Timeouts]uint32 {
	return renderSettings[abi.Ip4](s, m).Timeouts
}
