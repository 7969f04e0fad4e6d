// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// Means is the kind of device in whose queue wait the packets that a pod sends.
type Means int

const (
	// Pair is a veth pair: packets are sent by its first end and come in by the other. Who uses it
	// leads them there and back.
	Pair Means = iota
	// IFB is an intermediate functional block: the kernel leads packets there by a filter at the
	// pod's interface, and lets them come in by that interface afterwards.
	IFB
)

// Prefixes of devices' names. The rest is made of the name of the pod's interface.
const (
	prefixPair = "weirq"
	prefixBack = "weirr"
	prefixIFB  = "weiri"
)

// priority is that of our filter, behind those of programs.
const priority = 9

// Device is what a pod's packets wait in, by interface indexes: they come by Pod, and with Pair go
// out by Queue and come back by Back.
type Device struct {
	Pod, Queue, Back int
	Departure        Departure
}

// Queues are those of a node. They are for one goroutine, and work in its network namespace.
type Queues struct {
	by   Means
	have map[string]nodestate.QoS // as they are in the kernel
	devs map[string]Device        // of those whose egress is limited
	read bool                     // what an earlier run left is dealt with

	departs      bool  // packets have times of departure, ...
	noFQ         error // ... but the kernel has no queue for them
	linksDropped bool  // no uplink has a queue of ours
}

// New returns those of a driver.
func New(by Means) *Queues {
	return &Queues{by: by, have: map[string]nodestate.QoS{}, devs: map[string]Device{}}
}

// Devices returns those that there are, by the names of pods' interfaces.
func (q *Queues) Devices() map[string]Device { return q.devs }

// Add makes the queues that are wanted, and changes those that differ. What is no longer wanted
// stays until Remove. An interface that is gone is no error.
func (q *Queues) Add(want map[string]nodestate.QoS) []error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(want)) {
		w := want[name]
		if have, ok := q.have[name]; ok && have == w {
			continue
		}
		if err := q.put(name, w); err != nil {
			errs = append(errs, &dataplane.KeyError{Table: "queues", Key: name, Err: fmt.Errorf("bandwidth of pod %s: %w", w.Owner, err)})
		}
	}
	return errs
}

// put makes the queues of an interface.
func (q *Queues) put(name string, w nodestate.QoS) error {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return err
	}
	index, mtu := link.Attrs().Index, link.Attrs().MTU
	if w.Ingress.Bandwidth > 0 {
		err = netlink.QdiscReplace(queue(index, mtu, w.Ingress))
	} else {
		err = dropQueue(index)
	}
	if err != nil {
		return fmt.Errorf("the queue of %s: %w", name, err)
	}
	if w.Egress.Bandwidth > 0 {
		d, err := q.device(name, index, mtu, w)
		if err != nil {
			return err
		}
		q.devs[name] = d
	}
	q.have[name] = w
	return nil
}

// device makes the device in whose queue a pod's packets wait.
func (q *Queues) device(name string, index, mtu int, w nodestate.QoS) (Device, error) {
	d := Device{Pod: index}
	var l netlink.Link = &netlink.Ifb{LinkAttrs: attributes(prefixIFB, name, mtu)}
	if q.by == Pair {
		l = &netlink.Veth{LinkAttrs: attributes(prefixPair, name, mtu), PeerName: nameOf(prefixBack, name)}
	}
	if err := netlink.LinkAdd(l); err != nil && !errors.Is(err, unix.EEXIST) {
		return d, fmt.Errorf("making a device of the kind %s: %w", l.Type(), err)
	}
	ends := []*int{&d.Queue}
	names := []string{l.Attrs().Name}
	if q.by == Pair {
		ends, names = append(ends, &d.Back), append(names, nameOf(prefixBack, name))
	}
	for i, end := range ends {
		at, err := netlink.LinkByName(names[i])
		if err != nil {
			return d, fmt.Errorf("device %s: %w", names[i], err)
		}
		*end = at.Attrs().Index
		if i == 0 {
			if d.Departure, err = q.wait(*end, mtu, w.Egress); err != nil {
				return d, fmt.Errorf("the queue of %s: %w", names[i], err)
			}
		}
		if _, err := kernel.DisableIPv6(names[i]); err != nil {
			return d, fmt.Errorf("device %s: %w", names[i], err)
		}
		if err := netlink.LinkSetUp(at); err != nil {
			return d, fmt.Errorf("device %s: %w", names[i], err)
		}
	}
	if q.by == Pair {
		return d, nil
	}
	if err := netlink.QdiscAdd(clsact(index)); err != nil && !errors.Is(err, unix.EEXIST) {
		return d, fmt.Errorf("a clsact qdisc at %s: %w", name, err)
	}
	if err := netlink.FilterReplace(filter(index, d.Queue)); err != nil {
		return d, fmt.Errorf("leading packets from %s to %s: %w", name, names[0], err)
	}
	return d, nil
}

// Remove takes away what is not wanted; at first also what an earlier run left.
func (q *Queues) Remove(want map[string]nodestate.QoS) []error {
	var errs []error
	for name := range q.have {
		if _, wanted := want[name]; wanted {
			continue
		}
		if l, err := netlink.LinkByName(name); err == nil {
			errs = append(errs, dropQueue(l.Attrs().Index))
		}
		delete(q.have, name)
	}
	for name, d := range q.devs {
		if want[name].Egress.Bandwidth > 0 {
			continue
		}
		if err := errors.Join(dropFilter(q.by, d.Pod), dropLink(nameOf(prefixOf(q.by), name))); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(q.devs, name)
	}
	if !q.read {
		err := q.dropStrays(want)
		q.read = err == nil
		errs = append(errs, err)
	}
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

// dropStrays removes the queues and devices of pods that are not limited any more.
func (q *Queues) dropStrays(want map[string]nodestate.QoS) error {
	keep := map[string]bool{}
	limited := map[int]bool{}
	for name, w := range want {
		if w.Egress.Bandwidth > 0 {
			keep[nameOf(prefixOf(q.by), name)] = true
		}
		if l, err := netlink.LinkByName(name); err == nil && w.Ingress.Bandwidth > 0 {
			limited[l.Attrs().Index] = true
		}
	}
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range links {
		a := l.Attrs()
		switch {
		case strings.HasPrefix(a.Name, prefixOf(q.by)):
			if !keep[a.Name] {
				errs = append(errs, dropLink(a.Name))
			}
		case Is(a.Name):
		case !limited[a.Index] && isPods(a):
			errs = append(errs, dropQueue(a.Index))
		}
	}
	return errors.Join(errs...)
}

// Remove takes away the devices of a kind, with what leads packets there, when no driver that has
// them is left. Queues of pods' interfaces stay, which another data plane uses.
func Remove(by Means) error {
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("listing interfaces: %w", err)
	}
	var errs []error
	for _, l := range links {
		if a := l.Attrs(); isPods(a) {
			errs = append(errs, dropFilter(by, a.Index))
		}
	}
	for _, l := range links {
		if a := l.Attrs(); strings.HasPrefix(a.Name, prefixOf(by)) {
			errs = append(errs, dropLink(a.Name))
		}
	}
	if by == Pair {
		errs = append(errs, dropLinkQueues())
	}
	return errors.Join(errs...)
}

// isPods reports whether an interface is the host side of a pod's.
func isPods(a *netlink.LinkAttrs) bool { return bytes.Equal(a.HardwareAddr, kernel.HostSideMAC[:]) }

func prefixOf(by Means) string {
	if by == Pair {
		return prefixPair
	}
	return prefixIFB
}

// Is reports whether a name is that of a device of this package.
func Is(name string) bool {
	return strings.HasPrefix(name, prefixPair) || strings.HasPrefix(name, prefixBack) || strings.HasPrefix(name, prefixIFB)
}

// nameOf is the name of a device for a pod's interface, of 15 bytes as the kernel allows.
func nameOf(prefix, pod string) string {
	sum := sha256.Sum256([]byte(pod))
	return prefix + hex.EncodeToString(sum[:5])
}

func attributes(prefix, pod string, mtu int) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name, a.MTU = nameOf(prefix, pod), mtu
	return a
}

func clsact(ifindex int) *netlink.GenericQdisc {
	return &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
}

// filter leads all packets that come by an interface to a device.
func filter(from, to int) *netlink.U32 {
	return &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: from, Parent: netlink.HANDLE_MIN_INGRESS, Priority: priority, Protocol: unix.ETH_P_ALL},
		Actions:     []netlink.Action{netlink.NewMirredAction(to)},
	}
}

// dropQueue gives an interface that has a queue of ours its default one.
func dropQueue(ifindex int) error {
	l := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}
	all, err := netlink.QdiscList(l)
	if err != nil {
		return err
	}
	for _, q := range all {
		if t, ok := q.(*netlink.Tbf); ok && t.Handle == netlink.MakeHandle(handle, 0) {
			if err := netlink.QdiscDel(t); err != nil && !gone(err) {
				return err
			}
		}
	}
	return nil
}

func dropFilter(by Means, ifindex int) error {
	if by != IFB {
		return nil
	}
	err := netlink.FilterDel(&netlink.U32{FilterAttrs: netlink.FilterAttrs{LinkIndex: ifindex, Parent: netlink.HANDLE_MIN_INGRESS, Priority: priority, Protocol: unix.ETH_P_ALL}})
	if err != nil && !gone(err) {
		return fmt.Errorf("removing the filter of interface %d: %w", ifindex, err)
	}
	return nil
}

func dropLink(name string) error {
	l, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(l)
	}
	if err != nil && !gone(err) {
		return fmt.Errorf("removing device %s: %w", name, err)
	}
	return nil
}

// gone says that what is to be removed is not there.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL)
}
