// SPDX-License-Identifier: Apache-2.0

// Command awsvpc stands in for ipamd, the address daemon of Amazon's VPC CNI, on a node of a test
// or a lab: it answers that project's CNI plugin (aws-cni), by its gRPC protocol, with addresses of
// the interfaces that a configuration names, in the place of those that EC2 would attach. Routing
// rules, tables, marks and source NAT of the node are written by the project's own code
// (pkg/networkutils), so that they are what ipamd writes.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/aws/amazon-vpc-cni-k8s/pkg/networkutils"
	"github.com/aws/amazon-vpc-cni-k8s/rpc"
	"google.golang.org/grpc"
)

// config is read from a JSON file.
type config struct {
	Socket     string           // at which the plugin asks
	VPC        []string         // CIDRs between which nothing is translated
	IPv6       bool             // as with ENABLE_IPv6: pods have addresses of the primary interface's prefix alone
	Interfaces []elasticNetwork // the primary one first
}

// elasticNetwork is an elastic network interface of the node.
type elasticNetwork struct {
	MAC     string
	Address string   // its primary address
	Subnet  string   // CIDR
	Pods    []string // its secondary addresses, which pods get
}

// maxInterfaces is what getRouteTableNumberForENI wants to know of a network card; the number of
// the table does not depend on it where there is one card.
const maxInterfaces = 4

func main() {
	file := flag.String("config", "", "JSON `file` that says what the node has")
	flag.Parse()
	if err := run(*file); err != nil {
		fmt.Fprintln(os.Stderr, "awsvpc:", err)
		os.Exit(1)
	}
}

// run sets the node's network up, and serves until it is told to end. It writes a line when it is
// ready.
func run(file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var c config
	if err := json.Unmarshal(raw, &c); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	s, err := setUp(&c)
	if err != nil {
		return err
	}
	if err := os.Remove(c.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.Socket), 0o755); err != nil {
		return err
	}
	l, err := net.Listen("unix", c.Socket)
	if err != nil {
		return err
	}
	g := grpc.NewServer()
	rpc.RegisterCNIBackendServer(g, s)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, g.Stop)
	fmt.Println("ready")
	return g.Serve(l)
}

// setUp writes what ipamd writes when a node starts and when an interface is attached.
func setUp(c *config) (*server, error) {
	if len(c.Interfaces) == 0 {
		return nil, errors.New("the configuration has no interface")
	}
	n, err := networkutils.New()
	if err != nil {
		return nil, err
	}
	s := &server{vpc: c.VPC, given: map[string]given{}}
	interfaces := c.Interfaces
	if c.IPv6 {
		s.vpc, interfaces = nil, interfaces[:1]
	}
	for device, e := range interfaces {
		a := net.ParseIP(e.Address)
		if a == nil {
			return nil, fmt.Errorf("interface %d: %q is no address", device, e.Address)
		}
		table := networkutils.CalculateRouteTableId(device, 0)
		if device == 0 {
			err = n.SetupHostNetwork(c.VPC, e.MAC, &a, false, c.IPv6)
		} else {
			var known bool
			if table, known, err = n.GetRouteTableNumberForENI(0, e.Address, device, maxInterfaces, false); err == nil {
				err = n.SetupENINetwork(e.Address, e.MAC, 0, e.Subnet, maxInterfaces, false, table, known)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("interface %d: %w", device, err)
		}
		s.free = append(s.free, nil)
		for _, p := range e.Pods {
			s.free[device] = append(s.free[device], given{p, int32(device), int32(table)})
		}
	}
	return s, loosenReversePath(c.Interfaces[0].MAC)
}

// loosenReversePath does what the project's init container does for node ports on the primary
// interface.
func loosenReversePath(mac string) error {
	all, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range all {
		if i.HardwareAddr.String() == mac {
			return os.WriteFile("/proc/sys/net/ipv4/conf/"+i.Name+"/rp_filter", []byte("2"), 0)
		}
	}
	return fmt.Errorf("no interface has the MAC address %s", mac)
}

// given is an address that a pod has, or may have.
type given struct {
	addr          string
	device, table int32
}

func (g given) metadata() []*rpc.IPAllocationMetadata {
	m := &rpc.IPAllocationMetadata{IPv4Addr: g.addr, DeviceNumber: g.device, RouteTableId: g.table}
	if net.ParseIP(g.addr).To4() == nil {
		m.IPv4Addr, m.IPv6Addr = "", g.addr
	}
	return []*rpc.IPAllocationMetadata{m}
}

// server answers the plugin. Pods get addresses of the interfaces in turn, of each the one that was
// free for longest.
type server struct {
	rpc.UnimplementedCNIBackendServer
	vpc []string

	mu    sync.Mutex
	free  [][]given // by interface
	given map[string]given
	turn  int
}

func keyOf(container, network, iface string) string {
	return network + "/" + container + "/" + iface
}

func (s *server) AddNetwork(_ context.Context, r *rpc.AddNetworkRequest) (*rpc.AddNetworkReply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(r.ContainerID, r.NetworkName, r.IfName)
	a, again := s.given[key]
	for range s.free {
		if again {
			break
		}
		i := s.turn % len(s.free)
		s.turn++
		if len(s.free[i]) > 0 {
			a, again = s.free[i][0], true
			s.free[i] = s.free[i][1:]
			s.given[key] = a
		}
	}
	if !again {
		return &rpc.AddNetworkReply{}, nil
	}
	return &rpc.AddNetworkReply{Success: true, IPAllocationMetadata: a.metadata(), VPCv4CIDRs: s.vpc}, nil
}

func (s *server) DelNetwork(_ context.Context, r *rpc.DelNetworkRequest) (*rpc.DelNetworkReply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(r.ContainerID, r.NetworkName, r.IfName)
	a, is := s.given[key]
	if !is {
		return &rpc.DelNetworkReply{Success: true}, nil
	}
	delete(s.given, key)
	s.free[a.device] = append(s.free[a.device], a)
	return &rpc.DelNetworkReply{Success: true, IPAllocationMetadata: a.metadata()}, nil
}
