// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
)

// Foreign is a running pod whose interfaces another CNI plugin made as this one would have: of the
// same name on the host, with the same MAC address there, and a host route to each address.
type Foreign struct {
	Pod model.Name
	// ContainerID is empty where it is not known: it is that of the alias then, with AliasBefore.
	UID, ContainerID string
	Addrs            []netip.Addr
}

// AliasBefore precedes the alias of an interface that was made here and given to another plugin.
const AliasBefore = "was-"

// Adopt makes the interfaces and addresses of such pods Weir's own, as if its ADD had made them:
// with a record, an alias, and a permanent neighbour entry. Nothing changes for the pods, which go
// on asking for their gateway by ARP, and for what is answered for it. One that has been adopted is
// left alone. Pods without an interface are left out: they have ended, or another ADD comes. It is
// called before Restore.
func (s *Server) Adopt(prefix string, protocol int, pods []Foreign) (adopted int, err error) {
	var errs []error
	for _, p := range pods {
		done, err := s.adopt(prefix, protocol, p)
		if err != nil {
			errs = append(errs, fmt.Errorf("take over pod %s: %w", p.Pod, err))
		} else if done {
			adopted++
		}
	}
	return adopted, errors.Join(errs...)
}

func (s *Server) adopt(prefix string, protocol int, p Foreign) (bool, error) {
	host := hostName(prefix, p.Pod, "eth0")
	l, err := s.host.byName(host)
	if err != nil || l == nil || strings.HasPrefix(l.Attrs().Alias, "weir:") {
		return false, err
	}
	at := l.Attrs()
	if p.ContainerID == "" {
		pod, container, _, ok := parseAlias(strings.TrimPrefix(at.Alias, AliasBefore))
		if !ok || pod != p.Pod {
			return false, fmt.Errorf("neither the pod nor its interface %s says which container it is: make the pod again", host)
		}
		p.ContainerID = container
	}
	var mac net.HardwareAddr
	if err := s.host.inside(func() (err error) {
		mac, err = kernel.PeerMAC(at.ParentIndex, at.NetNsID)
		return err
	}); err != nil {
		return false, fmt.Errorf("the pod's end of %s: %w", host, err)
	}
	for _, a := range p.Addrs {
		routes, err := s.host.RouteGet(a.AsSlice())
		if err != nil || len(routes) == 0 || routes[0].LinkIndex != at.Index {
			return false, errors.Join(fmt.Errorf("the kernel does not send %s to %s, which the pod's name leads to", a, host), err)
		}
	}
	for _, a := range p.Addrs {
		r := ipam.Record{Address: a, ContainerID: p.ContainerID, IfName: "eth0", Namespace: p.Pod.Namespace, Pod: p.Pod.Name, UID: p.UID,
			HostInterface: host, MAC: mac.String(), Attempt: "adopted"}
		if err := s.IPAM.Restore(r); err != nil {
			return false, err
		}
		if err := s.host.route(at.Index, a, mac.String(), protocol); err != nil {
			return false, err
		}
	}
	return true, s.host.dress(l, alias(p.Pod, p.ContainerID, "eth0"))
}

// dress gives a host side that somebody else made the alias, by which it is ours from then on, and
// the settings of our own, but for proxy ARP: the pod has no permanent neighbour entry.
func (h *hostLinks) dress(l netlink.Link, text string) error {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: h.raw}
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(l.Attrs().Index)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(text)))
	conf := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	inet := conf.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, nil)
	for id, v := range map[int]uint32{devconfForwarding: 1, devconfProxyARP: 1, devconfRPFilter: 2} {
		inet.AddRtAttr(id, nl.Uint32Attr(v))
	}
	req.AddData(conf)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("set the alias and the settings of %s: %w", l.Attrs().Name, err)
	}
	return nil
}
