// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/model"
)

const (
	// handleFQ is that of queues that keep packets until they may depart. A queue's kind cannot be
	// changed under its handle.
	handleFQ = 0x5e1d
	// mostWaiting is how many packets such a queue keeps: time bounds what waits of each pod.
	mostWaiting = 1 << 17
	// longestWait is how long a packet may wait, whatever the rate: fq takes what departs within
	// ten seconds.
	longestWait = 5 * time.Second
)

// Departure is how a program gives a pod's packets the times at which they may depart.
type Departure struct {
	Rate        uint64        // bytes a second; 0 = the pod's packets wait in a queue that has the rate
	Burst, Wait time.Duration // of the rate that may be used at once; until a packet may depart
}

// Depart says that programs give packets times of departure: then the queues of what pods send only
// keep them until then. A peak rate needs a queue of its own.
func (q *Queues) Depart() { q.departs = true }

// Departing reports whether a pod's packets wait by departure times.
func (q *Queues) Departing() bool {
	for _, d := range q.devs {
		if d.Departure.Rate > 0 {
			return true
		}
	}
	return false
}

// WithoutFQ says why packets do not wait by departure times although they should; nil = they do.
func (q *Queues) WithoutFQ() error { return q.noFQ }

// wait makes the queue of a device in which a pod's packets wait.
func (q *Queues) wait(ifindex, mtu int, l model.Limits) (Departure, error) {
	if q.departs && q.noFQ == nil && l.Peakrate == 0 {
		err := netlink.QdiscReplace(fq(ifindex, netlink.HANDLE_ROOT, netlink.MakeHandle(handleFQ, 0)))
		if !errors.Is(err, unix.ENOENT) { // the kernel does not have that kind
			return departure(mtu, l), err
		}
		q.noFQ = fmt.Errorf("a queue of the kind fq: %w", err)
	}
	return Departure{}, netlink.QdiscReplace(queue(ifindex, mtu, l))
}

func departure(mtu int, l model.Limits) Departure {
	rate, burst, wait := bytesOf(mtu, l)
	of := func(bytes uint64) time.Duration {
		return time.Duration(float64(bytes) / float64(rate) * float64(time.Second))
	}
	return Departure{Rate: rate, Burst: of(burst), Wait: min(of(wait), longestWait)}
}

// fq is the queue that keeps packets until they may depart. It paces no socket by itself: the
// kernel's own pacing would leave it to times of departure that programs change.
func fq(ifindex int, parent, handle uint32) *netlink.Fq {
	q := netlink.NewFq(netlink.QdiscAttrs{LinkIndex: ifindex, Parent: parent, Handle: handle})
	q.Pacing, q.PacketLimit, q.FlowPacketLimit = 0, mostWaiting, mostWaiting
	return q
}

// Links makes packets wait at uplinks, too, whose queues are the kernel's default, and reports the
// others: what somebody has chosen stays.
func (q *Queues) Links(names map[int]string) (others map[string]string, err error) {
	others, q.linksDropped = map[string]string{}, false
	for _, index := range slices.Sorted(maps.Keys(names)) {
		root, err := rootOf(index)
		if err != nil {
			return nil, fmt.Errorf("the queues of %s: %w", names[index], err)
		}
		switch {
		case root != nil && (isOurs(root) || root.Type() == "fq"):
		case root == nil || root.Attrs().Handle == 0:
			if err := linkQueues(index); err != nil {
				return nil, fmt.Errorf("the queues of %s: %w", names[index], err)
			}
		default:
			others[names[index]] = root.Type()
		}
	}
	return others, nil
}

// linkQueues makes one queue for each of those that a device sends by.
func linkQueues(index int) error {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return err
	}
	count := l.Attrs().NumTxQueues
	handle := netlink.MakeHandle(handleFQ, 0)
	if count < 2 {
		return netlink.QdiscReplace(fq(index, netlink.HANDLE_ROOT, handle))
	}
	mq := &netlink.GenericQdisc{QdiscType: "mq", QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT, Handle: handle}}
	if err := netlink.QdiscReplace(mq); err != nil {
		return err
	}
	for n := range count {
		if err := netlink.QdiscReplace(fq(index, netlink.MakeHandle(handleFQ, uint16(n+1)), 0)); err != nil {
			return errors.Join(err, netlink.QdiscDel(mq))
		}
	}
	return nil
}

// DropLinks gives interfaces whose queues are ours, and no pod's device, their default ones.
func (q *Queues) DropLinks() error {
	if q.linksDropped {
		return nil
	}
	err := dropLinkQueues()
	q.linksDropped = err == nil
	return err
}

func dropLinkQueues() error {
	all, err := netlink.QdiscList(nil)
	if err != nil {
		return fmt.Errorf("listing queues: %w", err)
	}
	var errs []error
	for _, root := range all {
		if root.Attrs().Parent != netlink.HANDLE_ROOT || !isOurs(root) {
			continue
		}
		l, err := netlink.LinkByIndex(root.Attrs().LinkIndex)
		if err != nil || Is(l.Attrs().Name) {
			continue
		}
		if err := netlink.QdiscDel(root); err != nil && !gone(err) {
			errs = append(errs, fmt.Errorf("the queues of %s: %w", l.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}

// rootOf is the queue that a device sends by, nil where it has none.
func rootOf(index int) (netlink.Qdisc, error) {
	all, err := netlink.QdiscList(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}})
	if err != nil {
		return nil, err
	}
	for _, q := range all {
		if q.Attrs().Parent == netlink.HANDLE_ROOT {
			return q, nil
		}
	}
	return nil, nil
}

func isOurs(root netlink.Qdisc) bool { return root.Attrs().Handle == netlink.MakeHandle(handleFQ, 0) }
