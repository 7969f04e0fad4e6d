package ebpf

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
)

// TestGiveWayAndTakeOver: what the maps of a driver know when it has gone is known to connection tracking then, its programs pass
// everything, and a driver that begins with empty maps knows it again, and connection tracking no more translates it.
func TestGiveWayAndTakeOver(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	s := sample(b)
	applied(t, d, s)
	now, err := d.now()
	must(t, err)
	asked, after := flowKeyOf(unix.IPPROTO_TCP, "10.244.1.2:40000", "10.96.0.1:80"), flowKeyOf(unix.IPPROTO_TCP, "10.244.1.2:40000", "10.244.1.3:8080")
	there, here := flowTo(after, stateReplied, flowRewrite, actNeigh), flowTo(asked.turned(), stateReplied, flowRewrite|flowReply, actNeigh)
	there.Seen, here.Seen = now, now
	for k, v := range map[flowKey[ip4]]flowValue[ip4]{asked: there, after.turned(): here} {
		if put, err := addFlow(d.loaded.Maps["weir_flows"], k, v); !put || err != nil {
			t.Fatalf("adding a flow: %v, %v", put, err)
		}
	}
	must(t, d.Close())

	must(t, GiveWay(context.Background(), b.bpffs, conntrack.HoldOptions{InterfacePrefix: "cali"}, slog.New(slog.DiscardHandler)))
	table, err := conntrack.Open()
	must(t, err)
	defer table.Close()
	want, _ := tracked(asked, there, leastLeft)
	got, found, err := table.Find(want.Reply)
	if err != nil || !found || got.Orig != want.Orig || got.Reply != want.Reply || got.TCP != want.TCP {
		t.Fatalf("connection tracking knows %+v (%v, %v), want %+v", got, found, err, want)
	}
	for _, name := range programsInLinks(t, b.bpffs) {
		if name != "weir_nothing" {
			t.Errorf("program %s is still in a link", name)
		}
	}
	must(t, Remove(b.bpffs))

	b.edit = func(o *Options) { o.TakeOver = true }
	d = b.open(t)
	applied(t, d, s)
	var v flowValue[ip4]
	if err := lookUpFlow(d.loaded.Maps["weir_flows"], asked, &v); err != nil || v.after(asked.Proto) != after || v.Epoch == d.tables.epoch() {
		t.Errorf("the flow is taken over as %+v (%v)", v, err)
	}
	if err := lookUpFlow(d.loaded.Maps["weir_flows"], after.turned(), &v); err != nil || v.after(asked.Proto) != asked.turned() {
		t.Errorf("its answers are taken over as %+v (%v)", v, err)
	}
	if got, found, err := table.Find(want.Orig); found || err != nil {
		t.Errorf("connection tracking still has %+v (%v)", got, err)
	}
}

// now reads the programs' clock.
func (i instance) now() (uint32, error) {
	c, err := newKernelClock()
	if err != nil {
		return 0, err
	}
	defer c.close()
	return c.now()
}

// programsInLinks are the names of the programs in the pinned links of interfaces.
func programsInLinks(t *testing.T, bpffs string) (names []string) {
	t.Helper()
	pins, err := os.ReadDir(linksDir(bpffs))
	must(t, err)
	for _, pin := range pins {
		if strings.HasPrefix(pin.Name(), "cgroup") {
			continue
		}
		l, err := link.LoadPinnedLink(filepath.Join(linksDir(bpffs), pin.Name()), nil)
		must(t, err)
		info, err := l.Info()
		must(t, err)
		p, err := ebpf.NewProgramFromID(info.Program)
		must(t, err)
		pi, err := p.Info()
		must(t, err)
		names = append(names, pi.Name)
		p.Close()
		l.Close()
	}
	if len(names) == 0 {
		t.Fatal("there are no links")
	}
	return names
}
