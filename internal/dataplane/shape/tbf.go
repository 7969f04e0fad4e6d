// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"math"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/model"
)

const (
	// handle is that of our queues, by which they are distinguished from others' (tc: major).
	handle = 0x5e1c
	// header is what an Ethernet frame has before the IP packet, which queues count.
	header = 14
	// burstOf is the part of a second that goes at once where a pod does not say how much: within a
	// second goes no more than that above the rate.
	burstOf = 40
	// waitOf is the part of a second that packets may wait, and waitLeast how many bytes in any
	// case: with less, TCP does not reach a small rate.
	waitOf    = 10
	waitLeast = 64 << 10
	// tick is the unit of times in requests to the kernel (PSCHED_SHIFT), nanoseconds.
	tick = 64
)

// bytesOf are the bytes a second of limits with a bandwidth, those that may go at once, and those
// that may wait, by an interface with an MTU.
func bytesOf(mtu int, l model.Limits) (rate, burst, wait uint64) {
	rate = max(l.Bandwidth/8, 1)
	burst = l.Burst / 8
	if burst == 0 {
		burst = rate / burstOf
	}
	return rate, max(burst, uint64(2*(mtu+header))), max(rate/waitOf, waitLeast)
}

// queue returns the queue of a device with an MTU that holds packets to limits with a bandwidth.
func queue(ifindex, mtu int, l model.Limits) *netlink.Tbf {
	rate, burst, wait := bytesOf(mtu, l)
	q := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ifindex, Handle: netlink.MakeHandle(handle, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate,
		Buffer:     clip(float64(burst) * 1e9 / float64(rate) / tick),
		Limit:      clip(float64(burst) + float64(wait)),
	}
	if l.Peakrate > 0 {
		q.Peakrate = max(l.Peakrate/8, 1)
		q.Minburst = max(l.Minburst, uint32(mtu+header))
	}
	return q
}

func clip(v float64) uint32 { return uint32(min(v, math.MaxUint32)) }
