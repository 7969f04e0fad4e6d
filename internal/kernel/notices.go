// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// noticeBuffer is the size of the netlink sockets' buffers, bytes.
const noticeBuffer = 1 << 20

// Notices are the kernel's messages about links and routes of a network namespace, as they change.
// A channel is closed when messages were lost: its reader closes the notices, subscribes again, and
// looks at all there is. Without Subscribe there are none.
type Notices struct {
	Links  chan netlink.LinkUpdate
	Routes chan netlink.RouteUpdate
	done   chan struct{}
}

// Subscribe begins to read those of this network namespace (rtnetlink(7), RTNLGRP_LINK and the
// groups of routes).
func Subscribe() (*Notices, error) {
	n := &Notices{Links: make(chan netlink.LinkUpdate, 256), Routes: make(chan netlink.RouteUpdate, 256), done: make(chan struct{})}
	quiet := func(error) {} // the channel is closed then
	err := netlink.LinkSubscribeWithOptions(n.Links, n.done, netlink.LinkSubscribeOptions{
		ErrorCallback: quiet, ReceiveBufferSize: noticeBuffer, ReceiveBufferForceSize: true})
	if err == nil {
		err = netlink.RouteSubscribeWithOptions(n.Routes, n.done, netlink.RouteSubscribeOptions{
			ErrorCallback: quiet, ReceiveBufferSize: noticeBuffer, ReceiveBufferForceSize: true})
	}
	if err != nil {
		n.Close()
		return nil, fmt.Errorf("subscribing to changes of links and routes: %w", err)
	}
	return n, nil
}

// Close ends them; nil has none.
func (n *Notices) Close() {
	if n != nil && n.done != nil {
		close(n.done)
		n.done = nil
	}
}
