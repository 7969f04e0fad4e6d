// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/dataplane/ebpf/offline"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// answers runs the program that reads DNS on answers to a pod.
type answers struct {
	t    *testing.T
	node *offline.Node
	s    *nodestate.State
}

const (
	podIfindex  = 1 // of the packets of a test run
	podPort     = 40000
	dnsID       = 0x1234
	setOfPod    = nodestate.SetID(7)
	setOfOthers = nodestate.SetID(8)
)

var (
	dnsServer  = netip.MustParseAddr("10.96.0.10")
	dnsServer6 = netip.MustParseAddr("fd00::a")
	podAddr    = netip.MustParseAddr("10.244.1.2")
	podAddr6   = netip.MustParseAddr("fd00::2")
)

func newAnswers(t *testing.T, patterns ...string) *answers {
	t.Helper()
	return answersWith(t, []string{}, patterns...)
}

// answersWith has other programs than that of names, too.
func answersWith(t *testing.T, programs []string, patterns ...string) *answers {
	t.Helper()
	needRoot(t)
	node, err := offline.Load(offline.Options{Programs: programs})
	nettest.Must(t, err)
	t.Cleanup(node.Close)
	s := nodestate.New()
	s.Settings.IPv6 = true
	s.Addrs[podAddr] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: podIfindex, Egress: nodestate.Isolation{Set: setOfPod}}
	s.Names.Servers = []netip.Addr{dnsServer, dnsServer6}
	for i, p := range patterns {
		id := nodestate.NameID(100 + i)
		set := setOfPod
		if strings.Contains(p, "foreign") {
			set = setOfOthers
		}
		s.Names.Patterns[p] = id
		s.Names.Sets[nodestate.NameKey{Set: set, Name: id}] = 9
	}
	a := &answers{t, node, s}
	nettest.Must(t, node.Apply(s))
	return a
}

// question is one of the pod's.
func (a *answers) question(server netip.Addr, proto uint32) abi.WeirNameQuestion {
	var id [2]byte
	binary.BigEndian.PutUint16(id[:], dnsID)
	return abi.WeirNameQuestion{Ifindex: podIfindex, Server: abi.Widen(server), Port: abi.Be16(podPort), Id: binary.NativeEndian.Uint16(id[:]), Proto: proto}
}

// asked notes a question of the pod, as the program at its interface does.
func (a *answers) asked(server netip.Addr, proto uint32) {
	a.t.Helper()
	nettest.Must(a.t, a.node.Maps["weir_name_asked"].Put(a.question(server, proto), uint32(1)))
	if proto == 6 { // by a new connection, of which the server has sent nothing
		nettest.Must(a.t, a.node.Maps["weir_name_streams"].Put(streamOf(server), abi.WeirNameStream{First: 1<<32 - 1}))
	}
}

// streamOf is the pod's TCP connection to a server.
func streamOf(server netip.Addr) abi.WeirNameQuestion {
	return abi.WeirNameQuestion{Ifindex: podIfindex, Server: abi.Widen(server), Port: abi.Be16(podPort), Proto: 6}
}

// frame is a message from a server to the pod.
func frame(from, to netip.Addr, port uint16, tcp bool, message []byte) []byte {
	var l4 []byte
	l4 = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(l4, port), podPort)
	proto := byte(17)
	if tcp {
		proto = 6
		l4 = append(l4, make([]byte, 16)...)
		l4[12] = 6 << 4 // with an option of four bytes
		l4 = append(l4, 1, 1, 1, 1)
		l4 = binary.BigEndian.AppendUint16(l4, uint16(len(message)))
	} else {
		l4 = append(binary.BigEndian.AppendUint16(l4, uint16(8+len(message))), 0, 0)
	}
	l4 = append(l4, message...)
	out := make([]byte, 12, 64+len(message))
	if from.Is4() {
		out = append(out, 8, 0, 0x45, 0)
		out = append(binary.BigEndian.AppendUint16(out, uint16(20+len(l4))), 0, 0, 0x40, 0, 64, proto, 0, 0) // DF
	} else {
		out = append(out, 0x86, 0xdd, 0x60, 0, 0, 0)
		out = append(binary.BigEndian.AppendUint16(out, uint16(len(l4))), proto, 64)
	}
	return append(append(append(out, from.AsSlice()...), to.AsSlice()...), l4...)
}

// run has the program see a frame, which it lets pass.
func (a *answers) run(data []byte) {
	a.t.Helper()
	ret, err := a.node.Programs[object.NamesProgram].Run(&ebpf.RunOptions{Data: data})
	nettest.Must(a.t, err)
	if ret != 0 {
		a.t.Errorf("the program returned %d", ret)
	}
}

// told returns the patterns that the pod knows of an address.
func (a *answers) told(addr string) (out []uint64) {
	a.t.Helper()
	var v abi.WeirNamedValue
	if a.node.Maps["weir_names"].Lookup(abi.WeirNamedKey{Ifindex: podIfindex, Addr: abi.Widen(netip.MustParseAddr(addr))}, &v) != nil {
		return nil
	}
	for _, s := range v.Slots {
		if s.Pattern != 0 {
			out = append(out, s.Pattern)
		}
	}
	slices.Sort(out)
	return out
}

// left returns for how many seconds the first pattern of an address counts.
func (a *answers) left(addr string) int {
	a.t.Helper()
	var v abi.WeirNamedValue
	nettest.Must(a.t, a.node.Maps["weir_names"].Lookup(abi.WeirNamedKey{Ifindex: podIfindex, Addr: abi.Widen(netip.MustParseAddr(addr))}, &v))
	now, err := flowtable.MonotonicSeconds()
	nettest.Must(a.t, err)
	return int(v.Slots[0].Until) - int(now)
}

// record is one of an answer: an address, or with a name after -> a CNAME.
type record struct {
	owner, data string
	ttl         uint32
}

// message builds an answer.
func message(t *testing.T, compress bool, question string, records ...record) []byte {
	t.Helper()
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: dnsID, Response: true})
	if compress {
		b.EnableCompression()
	}
	nettest.Must(t, b.StartQuestions())
	nettest.Must(t, b.Question(dnsmessage.Question{Name: dnsmessage.MustNewName(question), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}))
	nettest.Must(t, b.StartAnswers())
	for _, r := range records {
		h := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(r.owner), Class: dnsmessage.ClassINET, TTL: r.ttl}
		switch addr, err := netip.ParseAddr(r.data); {
		case err != nil:
			nettest.Must(t, b.CNAMEResource(h, dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(r.data)}))
		case addr.Is4():
			nettest.Must(t, b.AResource(h, dnsmessage.AResource{A: addr.As4()}))
		default:
			nettest.Must(t, b.AAAAResource(h, dnsmessage.AAAAResource{AAAA: addr.As16()}))
		}
	}
	out, err := b.Finish()
	nettest.Must(t, err)
	return out
}

// answer has the pod ask, and get a message as the answer.
func (a *answers) answer(m []byte) {
	a.t.Helper()
	a.asked(dnsServer, 17)
	a.run(frame(dnsServer, podAddr, 53, false, m))
}

func (a *answers) counts() map[string]uint64 {
	a.t.Helper()
	d := &Driver{loaded: &object.Collection{Collection: a.node.Collection}}
	n, err := d.Names()
	nettest.Must(a.t, err)
	return n
}

func TestNamesInAnswers(t *testing.T) {
	t.Parallel()
	a := newAnswers(t, "www.example.com", "*.example.com", "*.a.example.com", "*.foreign.com", "cdn.test")
	want := func(what, addr string, patterns ...uint64) {
		t.Helper()
		if got := a.told(addr); !slices.Equal(got, patterns) {
			t.Errorf("%s: %s has %v, want %v", what, addr, got, patterns)
		}
	}
	for i, compress := range []bool{false, true} {
		x := []string{"192.0.2.", "198.51.100."}[i]
		a.answer(message(t, compress, "wWw.eXample.com.", record{"www.example.com.", x + "1", 300}, record{"www.example.com.", x + "2", 300}))
		want("a name", x+"1", 100, 101)
		want("a name's second address", x+"2", 100, 101)
		a.answer(message(t, compress, "example.com.", record{"example.com.", x + "3", 300}))
		want("the domain of a wildcard", x+"3")
		a.answer(message(t, compress, "x.y.a.example.com.", record{"x.y.a.example.com.", x + "4", 300}))
		want("two wildcards", x+"4", 101, 102)
		a.answer(message(t, compress, "b.foreign.com.", record{"b.foreign.com.", x + "5", 300}))
		want("a name of other pods' policy", x+"5")
		a.answer(message(t, compress, "other.test.", record{"other.test.", "cdn.test.", 300}, record{"cdn.test.", x + "6", 300}))
		want("a name in a chain", x+"6", 104)
		a.answer(message(t, compress, "b.example.com.", record{"b.example.com.", "cdn.test.", 20}, record{"cdn.test.", x + "7", 300}))
		want("both ends of a chain", x+"7", 101, 104)
		if left := a.left(x + "7"); left < 18 || left > 20 {
			t.Errorf("%d s are left of a chain of 20 s", left)
		}
		a.answer(message(t, compress, "b.example.com.", record{"b.example.com.", "2001:db8::" + x[:2], 0}))
		want("IPv6", "2001:db8::"+x[:2], 101)
		if left := a.left("2001:db8::" + x[:2]); left < 8 || left > 10 {
			t.Errorf("%d s are left of none, want 10", left)
		}
	}
	m := message(t, true, "b.example.com.", record{"b.example.com.", "192.0.2.30", 300})
	a.asked(dnsServer, 6)
	a.run(frame(dnsServer, podAddr, 53, true, m))
	want("by TCP", "192.0.2.30", 101)
	a.asked(dnsServer6, 17)
	a.run(frame(dnsServer6, podAddr6, 53, false, message(t, true, "b.example.com.", record{"b.example.com.", "192.0.2.31", 1 << 31})))
	want("over IPv6", "192.0.2.31", 101)
	if left := a.left("192.0.2.31"); left > 7*24*3600 {
		t.Errorf("%v are left", time.Duration(left)*time.Second)
	}
	// Behind options for hops and destinations, and a routing header, of which one has 16 bytes.
	for i, chain := range []string{"\x2b\x00\x01\x04\x00\x00\x00\x00" + "\x3c\x01" + strings.Repeat("\x00", 14) + "\x11\x00\x01\x04\x00\x00\x00\x00", "\x11\x00\x00\x01\x00\x00\x00\x07"} {
		f := frame(dnsServer6, podAddr6, 53, false, message(t, true, "b.example.com.", record{"b.example.com.", fmt.Sprint("192.0.2.", 40+i), 300}))
		f[20] = []byte{0, 44}[i]
		a.asked(dnsServer6, 17)
		a.run(slices.Insert(f, 54, []byte(chain)...))
		want("behind extension headers", fmt.Sprint("192.0.2.", 40+i), 101)
	}
	long := strings.Repeat(strings.Repeat("a", 60)+".", 3) + strings.Repeat("b", 50) + ".example.com."
	a.answer(message(t, true, long, record{long, "192.0.2.32", 300}))
	want("a long name", "192.0.2.32", 101)
	if n := a.counts(); n["noted"] == 0 || n["unasked"]+n["untrusted"]+n["unread"]+n["full"] > 0 {
		t.Errorf("counts: %v", n)
	}
}

// What is no answer of a trusted server to a question of the pod teaches nothing, whatever it is.
func TestForgedAnswers(t *testing.T) {
	t.Parallel()
	a := newAnswers(t, "*.example.com")
	m := message(t, true, "b.example.com.", record{"b.example.com.", "192.0.2.1", 300})
	change := func(at int, to ...byte) []byte {
		out := bytes.Clone(m)
		copy(out[at:], to)
		return out
	}
	count := func(what, name string, send func()) {
		t.Helper()
		before := a.counts()[name]
		send()
		if a.counts()[name] == before {
			t.Errorf("%s: not counted as %s: %v", what, name, a.counts())
		}
	}
	count("unasked", "unasked", func() { a.run(frame(dnsServer, podAddr, 53, false, m)) })
	count("asked of another", "unasked", func() { a.asked(dnsServer6, 17); a.run(frame(dnsServer, podAddr, 53, false, m)) })
	count("asked by TCP", "unasked", func() { a.asked(dnsServer, 6); a.run(frame(dnsServer, podAddr, 53, false, m)) })
	count("another ID", "unasked", func() { a.answer(change(0, 0x12, 0x35)) })
	count("another server", "untrusted", func() { a.run(frame(netip.MustParseAddr("10.96.0.11"), podAddr, 53, false, m)) })
	a.run(frame(dnsServer, podAddr, 54, false, m)) // from another port
	for _, c := range []struct {
		what string
		m    []byte
	}{
		{"a question", change(2, 0x01, 0x00)}, {"NXDOMAIN", change(2, 0x81, 0x83)}, {"an update", change(2, 0xa8, 0x00)},
		{"two questions", change(4, 0, 2)}, {"no answer", change(6, 0, 0)},
		{"a pointer to itself", change(12, 0xc0, 12)}, {"a pointer forward", change(12, 0xc0, 0x80)}, {"a label of 64 bytes", change(12, 64)}, {"an extended label", change(12, 0x80)},
		{"class CH", change(27, 0, 1, 0, 3, 0xc0, 12, 0, 1, 0, 3)},
	} {
		a.answer(c.m)
		if got := a.told("192.0.2.1"); got != nil {
			t.Fatalf("%s: %v", c.what, got)
		}
	}
	for n := range m { // cut anywhere
		a.answer(m[:n])
	}
	if got := a.told("192.0.2.1"); got != nil {
		t.Fatalf("cut: %v", got)
	}
	a.answer(m)
	if got := a.told("192.0.2.1"); got == nil {
		t.Error("what is right is not read")
	}
	a.run(frame(dnsServer, podAddr, 53, false, change(len(m)-4, 192, 0, 2, 2))) // the same question, answered before
	if got := a.told("192.0.2.2"); got != nil {
		t.Errorf("a second answer to one question: %v", got)
	}
}

// A pod has its share of the table, and an address the last patterns that led to it.
func TestNamesOfOnePod(t *testing.T) {
	t.Parallel()
	var patterns []string
	for c := 'a'; c <= 'l'; c++ {
		patterns = append(patterns, string(c)+".example.com")
	}
	a := newAnswers(t, patterns...)
	for i, p := range patterns {
		a.answer(message(t, true, p+".", record{p + ".", "192.0.2.1", uint32(100 + i)}))
	}
	if got := a.told("192.0.2.1"); len(got) != abi.NamedSlots || !slices.Contains(got, 111) || slices.Contains(got, 100) {
		t.Errorf("an address of twelve patterns has %v", got)
	}
	nettest.Must(t, a.node.Maps["weir_name_used"].Put(uint32(podIfindex), uint32(abi.NamedEach)))
	a.answer(message(t, true, "a.example.com.", record{"a.example.com.", "192.0.2.3", 1}))
	if a.told("192.0.2.3") == nil {
		t.Error("a pod is held to its share while the table is nearly empty")
	}
	nettest.Must(t, a.node.Maps["weir_name_used"].Put(uint32(0), uint32(abi.NamedFew)))
	a.answer(message(t, true, "a.example.com.", record{"a.example.com.", "192.0.2.2", 100}))
	a.answer(message(t, true, "a.example.com.", record{"a.example.com.", "192.0.2.1", 1000}))
	if a.told("192.0.2.2") != nil || !slices.Contains(a.told("192.0.2.1"), 100) || a.counts()["full"] != 1 {
		t.Errorf("beyond its share: %v; %v", a.told("192.0.2.2"), a.counts())
	}
	// The sweep finds out how many there are, and removes what is over.
	d := &Driver{loaded: &object.Collection{Collection: a.node.Collection}, state: a.s}
	now, err := flowtable.MonotonicSeconds()
	nettest.Must(t, err)
	nettest.Must(t, d.removeNames(now))
	var used uint32
	if err := a.node.Maps["weir_name_used"].Lookup(uint32(podIfindex), &used); err != nil || used != 2 {
		t.Errorf("%d entries of the pod: %v", used, err)
	}
	named, err := d.NamesOf(podIfindex, netip.MustParseAddr("192.0.2.1"))
	if err != nil || len(named) != abi.NamedSlots {
		t.Errorf("%v, %v", named, err)
	}
	nettest.Must(t, d.removeNames(now+2000))
	if a.told("192.0.2.1") != nil || a.node.Maps["weir_name_used"].Lookup(uint32(podIfindex), &used) == nil {
		t.Error("what is over stays")
	}
}

// The name that a pod asked for is kept with each address that it led to, also through a chain of
// names, for a pod's first addresses, and until it counts no more.
func TestAskedNames(t *testing.T) {
	t.Parallel()
	a := newAnswers(t, "*.example.com")
	asked := func(addr string) string {
		return flowtable.AskedName(a.node.Maps["weir_name_said"], podIfindex, netip.MustParseAddr(addr))
	}
	a.answer(message(t, true, "Shop.Example.ORG.", record{"shop.example.org.", "b.cdn.example.com.", 60}, record{"b.cdn.example.com.", "192.0.2.1", 60}, record{"b.cdn.example.com.", "2001:db8::1", 60}))
	for _, to := range []string{"192.0.2.1", "2001:db8::1"} {
		if got := asked(to); got != "shop.example.org" {
			t.Errorf("%s was asked for as %q", to, got)
		}
	}
	a.answer(message(t, true, "b.example.com.", record{"b.example.com.", "192.0.2.1", 60}))
	a.answer(message(t, true, "other.test.", record{"other.test.", "192.0.2.2", 60}))
	if got, other := asked("192.0.2.1"), asked("192.0.2.2"); got != "b.example.com" || other != "" {
		t.Errorf("asked again: %q; a name that policy does not have: %q", got, other)
	}
	longest := strings.Repeat(strings.Repeat("d", 49)+".", 4) + strings.Repeat("e", 41) + ".example.com" // 253 characters
	a.answer(message(t, true, longest+".", record{longest + ".", "192.0.2.4", 60}))
	if got := asked("192.0.2.4"); got != longest {
		t.Errorf("the longest name: %q", got)
	}
	nettest.Must(t, a.node.Maps["weir_name_used"].Put(uint32(podIfindex), uint32(abi.NamedEach)))
	a.answer(message(t, true, "c.example.com.", record{"c.example.com.", "192.0.2.3", 60}))
	if a.told("192.0.2.3") == nil || asked("192.0.2.3") != "" {
		t.Errorf("beyond what is kept of a pod: %q", asked("192.0.2.3"))
	}
	d := &Driver{loaded: &object.Collection{Collection: a.node.Collection}, state: a.s}
	now, err := flowtable.MonotonicSeconds()
	nettest.Must(t, err)
	r := dataplane.FlowRecord{Src: podAddr, Dst: netip.MustParseAddr("192.0.2.1"), Egress: dataplane.EventEnd{Local: true}}
	if got := d.askedName(&r); got != "" {
		t.Errorf("a record while no policy has names: %q", got)
	}
	d.names.Store(a.s)
	if got := d.askedName(&r); got != "b.example.com" {
		t.Errorf("a record of a connection there: %q", got)
	}
	nettest.Must(t, d.removeNames(now+80))
	if asked("192.0.2.1") == "" {
		t.Error("a name is forgotten while it counts")
	}
	nettest.Must(t, d.removeNames(now+100))
	if got := asked("192.0.2.1"); got != "" {
		t.Errorf("what is over stays: %q", got)
	}
}

// Patterns are where names that match them are looked for, as model.DomainMatches says.
func TestPatternsMatchNames(t *testing.T) {
	t.Parallel()
	patterns := []string{"*.com.test", "*.example.com.test", "example.com.test", "www.example.com.test", "*.www.example.com.test",
		"update.*.com.test", "a.update.*.com.test", "www.*.example.com.test", "www.google.*", "www.*", "www.*.net", "*.net", "intranet"}
	a := newAnswers(t, patterns...)
	for _, name := range []string{"intranet", "net", "x.net", "www.net", "www.x.net", "www.x.y.net", "wwww.x.net", "update.com.test", "update.x.com.test", "update.x.y.com.test",
		"x.update.y.com.test", "a.update.y.com.test", "a.update.com.test", "www.google.de", "www.google.co.uk", "www.google", "google.de", "www.a.example.com.test", "UPDATE.X.com.test", "www",
		"www.google." + strings.Repeat(strings.Repeat("d", 60)+".", 3) + strings.Repeat("e", 58), "a.update." + strings.Repeat(strings.Repeat("d", 60)+".", 3) + "com.test",
		"com.test", "x.com.test", "example.com.test", "www.example.com.test", "a.www.example.com.test", "a.b.www.example.com.test", "badexample.com.test", "test", "xcom.test"} {
		nettest.Must(t, a.node.ResetFlows())
		a.answer(message(t, false, name+".", record{name + ".", "192.0.2.1", 300}))
		var want []uint64
		for _, p := range patterns {
			if model.DomainMatches(p, strings.ToLower(name)) {
				want = append(want, uint64(a.s.Names.Patterns[p]))
			}
		}
		slices.Sort(want)
		if got := a.told("192.0.2.1"); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	back, err := a.node.Load()
	nettest.Must(t, err)
	if !back.Names.Equal(&a.s.Names) {
		t.Errorf("read back: %+v, want %+v", back.Names, a.s.Names)
	}
}
