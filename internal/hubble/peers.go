// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-net/weir/internal/hubble/api/peer"
	"github.com/weir-net/weir/internal/hubble/servername"
)

// lookForPeers is between two looks at the nodes of the cluster.
const lookForPeers = 2 * time.Second

// notify tells the nodes of the cluster, and what changes of them, until who asked is gone.
func (s *Server) notify(to grpc.ServerStreamingServer[peer.ChangeNotification]) error {
	if s.Port == 0 {
		return status.Error(codes.FailedPrecondition, "agents serve this API at a socket of their node alone: set FELIX_HUBBLEPORT")
	}
	told := map[string]string{} // addresses by name
	tick := time.NewTicker(lookForPeers)
	defer tick.Stop()
	for {
		for _, change := range s.changes(told) {
			if err := to.Send(change); err != nil {
				return err
			}
		}
		select {
		case <-to.Context().Done():
			return to.Context().Err()
		case <-tick.C:
		}
	}
}

// changes returns what is to be said to somebody who was told of some, and notes that it was.
func (s *Server) changes(told map[string]string) (out []*peer.ChangeNotification) {
	there := map[string]string{}
	for _, n := range s.Nodes() {
		if len(n.Addrs) > 0 {
			there[n.Name] = net.JoinHostPort(n.Addrs[0].String(), strconv.Itoa(int(s.Port)))
		}
	}
	say := func(what peer.ChangeNotificationType, name, at string) {
		out = append(out, &peer.ChangeNotification{Name: name, Address: at, Type: what, Tls: &peer.TLS{ServerName: servername.Of(name)}})
	}
	for _, name := range slices.Sorted(maps.Keys(there)) {
		switch before, known := told[name]; {
		case !known:
			say(peer.ChangeNotificationType_PEER_ADDED, name, there[name])
		case before != there[name]:
			say(peer.ChangeNotificationType_PEER_UPDATED, name, there[name])
		}
		told[name] = there[name]
	}
	for _, name := range slices.Sorted(maps.Keys(told)) {
		if _, is := there[name]; !is {
			say(peer.ChangeNotificationType_PEER_DELETED, name, told[name])
			delete(told, name)
		}
	}
	return out
}
