// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// PeerMAC returns the MAC address of the interface index of another network namespace, which this
// one knows by the number nsid (IFLA_LINK and IFLA_LINK_NETNSID of a veth pair's end here). It asks
// by IFLA_TARGET_NETNSID (Linux 4.15), so that the namespace need not be entered.
func PeerMAC(index, nsid int) (net.HardwareAddr, error) {
	if nsid < 0 {
		return nil, fmt.Errorf("interface %d is in no other network namespace that is known here", index)
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(nsid))))
	answers, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, fmt.Errorf("interface %d of network namespace %d: %w", index, nsid, err)
	}
	if len(answers) != 1 {
		return nil, fmt.Errorf("interface %d of network namespace %d: %d answers", index, nsid, len(answers))
	}
	l, err := netlink.LinkDeserialize(nil, answers[0])
	if err != nil {
		return nil, fmt.Errorf("interface %d of network namespace %d: %w", index, nsid, err)
	}
	return l.Attrs().HardwareAddr, nil
}
