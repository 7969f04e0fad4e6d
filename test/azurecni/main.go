// SPDX-License-Identifier: Apache-2.0

// Command azurecns stands in for Azure's Container Networking Service (CNS) on a node of a lab: it
// answers the project's CNI plugin (azure-vnet, with the IPAM azure-cns) by CNS's HTTP API on the
// loopback interface, with addresses that a configuration names, in the place of those that Azure
// would give to the node. It writes the source NAT of the ip-masq-agent that runs beside Azure CNI,
// too.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/Azure/azure-container-networking/cns"
	"github.com/Azure/azure-container-networking/cns/types"
)

// config is read from a JSON file.
type config struct {
	Listen  string // host:port; the plugin asks localhost:10090
	Overlay bool   // pods' addresses are of no subnet, and have no gateway there
	// Node is the node's own address in its subnet, NodeGateway the subnet's.
	Node        netip.Prefix
	NodeGateway netip.Addr
	// Pods are the addresses of pods, in the network PodNet with PodGateway, which an overlay has
	// not. The first one is the network container's own.
	Pods       []netip.Addr
	PodNet     netip.Prefix
	PodGateway netip.Addr
	// NonMasquerade are the networks to which pods send with their own addresses.
	NonMasquerade []netip.Prefix
}

func main() {
	file := flag.String("config", "", "JSON `file` that says what the node has")
	flag.Parse()
	if err := run(*file); err != nil {
		fmt.Fprintln(os.Stderr, "azurecns:", err)
		os.Exit(1)
	}
}

func run(file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var c config
	if err := json.Unmarshal(raw, &c); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	s, err := newServer(&c)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := masquerade(ctx, c.NonMasquerade); err != nil {
		return err
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	h := &http.Server{Handler: s.routes(), ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() { h.Close() })
	if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// masqChain is the chain of the ip-masq-agent.
const masqChain = "IP-MASQ-AGENT"

// masquerade has what pods send out of the networks named leave with the node's address, by the
// rules that the ip-masq-agent writes.
func masquerade(ctx context.Context, not []netip.Prefix) error {
	var text strings.Builder
	fmt.Fprintf(&text, "*nat\n:%s - [0:0]\n", masqChain)
	for _, p := range not {
		fmt.Fprintf(&text, "-A %s -d %s -j RETURN\n", masqChain, p)
	}
	fmt.Fprintf(&text, "-A %s -j MASQUERADE\nCOMMIT\n", masqChain)
	restore := exec.CommandContext(ctx, "iptables-restore", "--noflush", "--wait", "10")
	restore.Stdin = strings.NewReader(text.String())
	if out, err := restore.CombinedOutput(); err != nil {
		return fmt.Errorf("writing chain %s: %w: %s", masqChain, err, out)
	}
	jump := []string{"POSTROUTING", "-m", "addrtype", "!", "--dst-type", "LOCAL", "-j", masqChain}
	if exec.CommandContext(ctx, "iptables", append([]string{"-w", "10", "-t", "nat", "-C"}, jump...)...).Run() == nil {
		return nil
	}
	if out, err := exec.CommandContext(ctx, "iptables", append([]string{"-w", "10", "-t", "nat", "-A"}, jump...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("leading to chain %s: %w: %s", masqChain, err, out)
	}
	return nil
}

// server gives addresses: of those that nobody has the one that was free for longest.
type server struct {
	config

	mu    sync.Mutex
	free  []netip.Addr
	given map[string]netip.Addr // by the pod's interface
}

func newServer(c *config) (*server, error) {
	if len(c.Pods) < 2 || !c.PodNet.IsValid() || !c.Node.IsValid() {
		return nil, errors.New("the configuration lacks the node's address, or addresses of pods")
	}
	if !c.Overlay && (!c.PodGateway.IsValid() || !c.NodeGateway.IsValid()) {
		return nil, errors.New("the configuration lacks a subnet's gateway")
	}
	return &server{config: *c, free: slices.Clone(c.Pods[1:]), given: map[string]netip.Addr{}}, nil
}

func (s *server) routes() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	m.HandleFunc("POST "+cns.RequestIPConfigs, func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, r, func(q *cns.IPConfigsRequest) any { return s.request(q) })
	})
	m.HandleFunc("POST "+cns.ReleaseIPConfigs, func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, r, func(q *cns.IPConfigsRequest) any { return s.release(q) })
	})
	return m
}

// answer reads a question and writes what f says.
func (s *server) answer(w http.ResponseWriter, r *http.Request, f func(*cns.IPConfigsRequest) any) {
	var q cns.IPConfigsRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&q); err != nil || q.PodInterfaceID == "" {
		http.Error(w, "no request for addresses of a pod's interface", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(f(&q)); err != nil {
		fmt.Fprintln(os.Stderr, "azurecns: answering:", err)
	}
}

func (s *server) request(q *cns.IPConfigsRequest) *cns.IPConfigsResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, again := s.given[q.PodInterfaceID]
	if !again {
		if len(s.free) == 0 {
			return &cns.IPConfigsResponse{Response: cns.Response{ReturnCode: types.UnexpectedError, Message: "all addresses of the node are taken"}}
		}
		a, s.free = s.free[0], s.free[1:]
		s.given[q.PodInterfaceID] = a
	}
	prefix := uint8(s.PodNet.Bits())
	gateway := ""
	if !s.Overlay {
		gateway = s.PodGateway.String()
	}
	return &cns.IPConfigsResponse{PodIPInfo: []cns.PodIpInfo{{
		PodIPConfig: cns.IPSubnet{IPAddress: a.String(), PrefixLength: prefix},
		NetworkContainerPrimaryIPConfig: cns.IPConfiguration{
			IPSubnet: cns.IPSubnet{IPAddress: s.Pods[0].String(), PrefixLength: prefix}, GatewayIPAddress: gateway,
		},
		HostPrimaryIPInfo: cns.HostIPInfo{
			Gateway: s.NodeGateway.String(), PrimaryIP: s.Node.Addr().String(), Subnet: s.Node.Masked().String(),
		},
	}}}
}

func (s *server) release(q *cns.IPConfigsRequest) *cns.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a, is := s.given[q.PodInterfaceID]; is {
		delete(s.given, q.PodInterfaceID)
		s.free = append(s.free, a)
	}
	return &cns.Response{}
}
