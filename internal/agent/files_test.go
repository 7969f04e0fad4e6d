package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

func logTo(b *bytes.Buffer) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

func TestFullDiskIsSaidOnceAndLosesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	var log bytes.Buffer
	r := &remembered[[]string]{path: filepath.Join(dir, "state.json"), log: logTo(&log)}
	if err := r.save([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 64<<10), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	for range 3 {
		err := r.save([]string{strings.Repeat("b", 8<<10)})
		if err == nil || !strings.Contains(err.Error(), "the disk is full") {
			t.Errorf("error %v", err)
		}
	}
	if n := strings.Count(log.String(), "cannot be written"); n != 1 {
		t.Errorf("said %d times: %s", n, log.String())
	}
	if got := r.load(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("after failed writes: %v", got)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".state*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestCorruptStateFileIsNamedAndReplaced(t *testing.T) {
	file := filepath.Join(t.TempDir(), "apiservers.json")
	if err := os.WriteFile(file, []byte(`["172.31.1.8:64`), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s := newAPIServers(file, logTo(&log))
	if len(s.learned) != 0 || !strings.Contains(log.String(), file) {
		t.Errorf("learned %v, log %s", s.learned, log.String())
	}
	s.learn([]string{"172.31.1.8:6443"})
	if again := newAPIServers(file, logTo(&log)); !slices.Equal(again.learned, []string{"172.31.1.8:6443"}) {
		t.Errorf("learned %v", again.learned)
	}
}

// The configured address does not answer: a learned one is used.
func TestAPIServerIsFoundAtALearnedAddress(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := closed.Addr().String()
	closed.Close()
	var log bytes.Buffer
	s := newAPIServers(filepath.Join(t.TempDir(), "apiservers.json"), logTo(&log))
	if _, err := s.dial(context.Background(), "tcp", dead); err == nil {
		t.Fatal("connected to nobody")
	}
	s.learn([]string{ln.Addr().String()})
	conn, err := s.dial(context.Background(), "tcp", dead)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if conn.RemoteAddr().String() != ln.Addr().String() || !strings.Contains(log.String(), "learned before") {
		t.Errorf("connected to %v, log %s", conn.RemoteAddr(), log.String())
	}
}

func TestAPIServersOfEndpointSlices(t *testing.T) {
	addrs := []model.ServiceEndpoint{{Addrs: ips("172.31.1.9")}, {Addrs: ips("172.31.1.8")}}
	servers := map[model.Name]*model.EndpointSlice{}
	noteSlices(apiService, servers, map[model.Name]*model.EndpointSlice{
		{Namespace: "default", Name: "kubernetes"}: {Service: model.Name{Namespace: "default", Name: "kubernetes"},
			Ports: []model.EndpointPort{{Name: "https", Protocol: model.ProtocolTCP, Port: 6443}}, Endpoints: addrs},
		{Namespace: "evil", Name: "kubernetes"}: {Service: model.Name{Namespace: "evil", Name: "kubernetes"},
			Ports: []model.EndpointPort{{Protocol: model.ProtocolTCP, Port: 1}}, Endpoints: addrs},
	})
	if got, want := serversOf(servers), []string{"172.31.1.8:6443", "172.31.1.9:6443"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	noteSlices(apiService, servers, map[model.Name]*model.EndpointSlice{{Namespace: "default", Name: "other"}: nil})
	if len(serversOf(servers)) != 2 {
		t.Error("another slice's end took them away")
	}
	noteSlices(apiService, servers, map[model.Name]*model.EndpointSlice{{Namespace: "default", Name: "kubernetes"}: {Service: model.Name{Namespace: "default", Name: "x"}}})
	if got := serversOf(servers); got != nil {
		t.Errorf("%v of a slice that is another Service's now", got)
	}
}

// TestHostileServersOfSlices: of the Service's slices only the API servers' own says where an agent connects to.
func TestHostileServersOfSlices(t *testing.T) {
	hostile.Record(t, "an EndpointSlice that a tenant wrote says where agents look for the API server, and says it thousandfold", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	servers := map[model.Name]*model.EndpointSlice{}
	many := &model.EndpointSlice{Service: apiService, Ports: []model.EndpointPort{{Protocol: model.ProtocolTCP, Port: 6443}}}
	for i := range 1000 {
		many.Endpoints = append(many.Endpoints, model.ServiceEndpoint{Addrs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})}})
	}
	noteSlices(apiService, servers, map[model.Name]*model.EndpointSlice{{Namespace: "default", Name: "kubernetes-x"}: many})
	if got := serversOf(servers); got != nil {
		t.Errorf("%d servers", len(got))
	}
	noteSlices(apiService, servers, map[model.Name]*model.EndpointSlice{apiService: many})
	file := filepath.Join(t.TempDir(), "apiservers.json")
	s := newAPIServers(file, slog.New(slog.DiscardHandler))
	s.learn(serversOf(servers))
	if len(s.learned) != 16 || len(newAPIServers(file, slog.New(slog.DiscardHandler)).learned) != 16 {
		t.Errorf("%d are kept", len(s.learned))
	}
}

func TestConflistIsReadByRuntimes(t *testing.T) {
	c := conflist{dir: t.TempDir()}
	wrote, err := c.ensure("/run/weir/cni.sock", false)
	if err != nil || !wrote {
		t.Fatalf("wrote %t, %v", wrote, err)
	}
	if wrote, err = c.ensure("/run/weir/cni.sock", false); err != nil || wrote {
		t.Errorf("wrote again: %t, %v", wrote, err)
	}
	list, err := libcni.ConfListFromFile(c.path())
	if err != nil {
		t.Fatal(err)
	}
	if list.CNIVersion != "1.0.0" || len(list.Plugins) != 1 || list.Plugins[0].Network.Type != "weir-cni" {
		t.Errorf("%+v", list)
	}
	files, err := libcni.ConfFiles(c.dir, []string{".conf", ".conflist", ".json"})
	if err != nil || len(files) != 1 {
		t.Errorf("files for the runtime: %v, %v", files, err)
	}
}

// TestConflistFollowsFamilies: the file says that pods get IPv6 when they do, also when that changes.
func TestConflistFollowsFamilies(t *testing.T) {
	c := conflist{dir: t.TempDir()}
	var v6 atomic.Bool
	look, stop := make(chan struct{}, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		stop <- c.keep(ctx, "/run/weir/cni.sock", func() error { return nil }, v6.Load, look, slog.New(slog.DiscardHandler))
	}()
	for _, want := range []bool{false, true, false} {
		v6.Store(want)
		select {
		case look <- struct{}{}:
		default:
		}
		await.That(t, fmt.Sprintf("assign_ipv6 is %t", want), func() error {
			raw, err := os.ReadFile(c.path())
			if err != nil {
				return err
			}
			var conf struct {
				Plugins []struct {
					IPAM struct {
						IPv4 bool `json:"assign_ipv4"`
						IPv6 bool `json:"assign_ipv6"`
					}
				}
			}
			if err := json.Unmarshal(raw, &conf); err != nil {
				return err
			}
			if got := conf.Plugins[0].IPAM; !got.IPv4 || got.IPv6 != want {
				return fmt.Errorf("the file says %+v", got)
			}
			return nil
		})
	}
	cancel()
	if err := <-stop; err != nil {
		t.Error(err)
	}
}

func ips(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}
