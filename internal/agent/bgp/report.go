// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// maxRoutes bounds the routes of a family in an object, which has a size that the API server takes.
const maxRoutes = 2000

// timeFormat is that of times which are strings in CalicoNodeStatus, of UTC.
const timeFormat = "2006-01-02 15:04:05"

// PeerTypes returns the types of BGPPeers in a CalicoNodeStatus.
func PeerTypes(c *model.Cluster) map[string]v3.BGPPeerType {
	out := map[string]v3.BGPPeerType{}
	for name, p := range c.BGPPeers {
		out[name] = typeOf(p.Node, p.NodeSelector)
	}
	return out
}

// reporter says how the node's BGP is.
type reporter struct {
	state  *nodestate.State
	status *feed.Status // nil = no process runs
	peers  map[string]v3.BGPPeerType
}

// report fills a status, and returns how many routes are left out.
func (r *reporter) report(ctx context.Context, classes []v3.NodeStatusClassType, p Process) (*v3.CalicoNodeStatusStatus, int, error) {
	out, left := &v3.CalicoNodeStatusStatus{LastUpdated: metav1.Now()}, 0
	if slices.Contains(classes, v3.NodeStatusClassTypeAgent) {
		// One process has the sessions of both families.
		out.Agent.BIRDV4 = r.daemon()
		out.Agent.BIRDV6 = out.Agent.BIRDV4
	}
	if slices.Contains(classes, v3.NodeStatusClassTypeBGP) {
		r.sessions(&out.BGP)
	}
	if slices.Contains(classes, v3.NodeStatusClassTypeRoutes) && r.status != nil && r.desired() != nil {
		answer, err := p.Ask(ctx, feed.Ask{})
		switch {
		case errors.Is(err, feed.ErrAway) || answer.Err != "": // it has gone since, or has ended its sessions
		case err != nil:
			return nil, 0, err
		default:
			left = answer.More + r.routes(answer.Routes, &out.Routes)
		}
	}
	return out, left, nil
}

func (r *reporter) desired() *nodestate.BGP {
	if r.state == nil {
		return nil
	}
	return r.state.BGP
}

func (r *reporter) daemon() v3.BGPDaemonStatus {
	st := r.status
	if st == nil {
		return v3.BGPDaemonStatus{State: v3.BGPDaemonStateNotReady}
	}
	out := v3.BGPDaemonStatus{State: v3.BGPDaemonStateNotReady, Version: "weir-bgp " + st.Version, LastBootTime: text(st.Since), LastReconfigurationTime: text(st.Applied)}
	if st.RouterID.IsValid() && r.desired() != nil {
		out.State, out.RouterID = v3.BGPDaemonStateReady, st.RouterID.String()
	}
	return out
}

func text(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(timeFormat)
}

var sessionStates = map[string]v3.BGPSessionState{
	"idle": v3.BGPSessionStateIdle, "connect": v3.BGPSessionStateConnect, "active": v3.BGPSessionStateActive,
	"opensent": v3.BGPSessionStateOpenSent, "openconfirm": v3.BGPSessionStateOpenConfirm, "established": v3.BGPSessionStateEstablished,
}

// sessions are all that should be; one that the process does not have is idle.
func (r *reporter) sessions(out *v3.CalicoNodeBGPStatus) {
	if r.desired() == nil {
		return
	}
	have := map[netip.Addr]feed.Peer{}
	if r.status != nil {
		for _, p := range r.status.Peers {
			have[p.Addr] = p
		}
	}
	for _, want := range r.desired().Peers {
		p := have[want.Addr]
		one := v3.CalicoNodePeer{PeerIP: want.Addr.String(), Type: r.typeOf(want.Name), State: sessionStates[p.State], Since: text(p.Since)}
		if one.State == "" {
			one.State = v3.BGPSessionStateIdle
		}
		list, up, down := &out.PeersV4, &out.NumberEstablishedV4, &out.NumberNotEstablishedV4
		if want.Addr.Is6() {
			list, up, down = &out.PeersV6, &out.NumberEstablishedV6, &out.NumberNotEstablishedV6
		}
		if *list = append(*list, one); p.Established() {
			*up++
		} else {
			*down++
		}
	}
}

// typeOf is of a session by its name, which begins with the object's.
func (r *reporter) typeOf(name string) v3.BGPPeerType {
	object, _, _ := strings.Cut(name, " ")
	if t, is := r.peers[object]; is {
		return t
	}
	return v3.BGPPeerTypeNodeMesh
}

// routes adds them, and returns how many are left out.
func (r *reporter) routes(all []feed.Route, out *v3.CalicoNodeBGPRouteStatus) (left int) {
	sources := map[netip.Addr]v3.CalicoNodeRouteSourceType{}
	for _, p := range r.desired().Peers {
		sources[p.Addr] = v3.RouteSourceTypeBGPPeer
		if r.typeOf(p.Name) == v3.BGPPeerTypeNodeMesh {
			sources[p.Addr] = v3.RouteSourceTypeNodeMesh
		}
	}
	for _, route := range all {
		list := &out.RoutesV4
		if route.Prefix.Addr().Is6() {
			list = &out.RoutesV6
		}
		if len(*list) == maxRoutes {
			left++
			continue
		}
		one := v3.CalicoNodeRoute{Type: v3.RouteTypeRIB, Destination: route.Prefix.String()}
		switch {
		case !route.Peer.IsValid(): // the node's own
			one.LearnedFrom.SourceType = v3.RouteSourceTypeStatic
		default:
			one.LearnedFrom = v3.CalicoNodeRouteLearnedFrom{SourceType: sources[route.Peer], PeerIP: route.Peer.String()}
			one.Gateway = route.NextHop.String()
		}
		if route.Installed {
			one.Type, one.Interface = v3.RouteTypeFIB, route.Interface
			if route.Gateway.IsValid() {
				one.Gateway = route.Gateway.String()
			}
		}
		*list = append(*list, one)
	}
	return left
}
