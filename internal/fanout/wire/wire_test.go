// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weir-net/weir/internal/model"
)

func everyExpression(string) error { return nil }

// differ describes how changes differ; lists and maps without elements are none.
func differ(want, got *model.Changes) string {
	if reflect.DeepEqual(want, got) { // the usual case, in a fraction of the time
		return ""
	}
	return cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty())
}

// send sends changes in messages of some size; each is read by a Decoder that saw no other.
func send(t *testing.T, ch *model.Changes, size int) (got *model.Changes, messages [][]byte) {
	t.Helper()
	messages, err := Encoder{Size: size}.Marshal(ch)
	if err != nil {
		t.Fatal(err)
	}
	got = &model.Changes{}
	for i, b := range messages {
		d := Decoder{Expression: everyExpression}
		m, err := d.Decode(b)
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		if len(m.NotUnderstood) > 0 {
			t.Fatalf("message %d is not understood: %v", i, m.NotUnderstood)
		}
		if m.More != (i < len(messages)-1) {
			t.Errorf("message %d of %d says more = %v", i, len(messages), m.More)
		}
		merge(got, m.Changes)
	}
	return got, messages
}

// TestEveryFieldIsSent fails when the model has a field that messages have not.
func TestEveryFieldIsSent(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		f := &filler{rand.New(rand.NewPCG(seed, 1)), true}
		ch := f.changes(t, 3)
		got, _ := send(t, ch, 0)
		if !reflect.DeepEqual(ch, got) {
			t.Fatalf("seed %d: %s", seed, differ(ch, got))
		}
	}
}

func TestRandomChanges(t *testing.T) {
	t.Parallel()
	for seed := range uint64(150) {
		f := &filler{rand.New(rand.NewPCG(seed, 2)), false}
		ch := f.changes(t, int(seed)%30)
		whole, _ := send(t, ch, 0)
		if d := differ(ch, whole); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
		parts, messages := send(t, ch, 1000)
		if d := differ(ch, parts); d != "" {
			t.Fatalf("seed %d, in %d messages: %s", seed, len(messages), d)
		}
	}
}

// TestPartsAreApplied holds that a cluster follows message by message.
func TestPartsAreApplied(t *testing.T) {
	t.Parallel()
	want, got := model.NewCluster(), model.NewCluster()
	d := Decoder{Expression: everyExpression}
	for seed := range uint64(20) {
		f := &filler{rand.New(rand.NewPCG(seed, 3)), false}
		ch := f.changes(t, 30)
		ch.Apply(want)
		for b, err := range (Encoder{Size: 4000}).Messages(ch) {
			if err != nil {
				t.Fatal(err)
			}
			m, err := d.Decode(b)
			if err != nil {
				t.Fatal(err)
			}
			m.Changes.Apply(got)
		}
		if d := differ(want.Everything(), got.Everything()); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
	}
	if got.Pods.Len() < 30 || len(got.Policies) < 30 {
		t.Errorf("%d pods and %d policies", got.Pods.Len(), len(got.Policies))
	}
}

// TestEmptyIsAbsent holds what wire.proto says of lists and maps without elements, and that a
// selector that picks everything is not none.
func TestEmptyIsAbsent(t *testing.T) {
	t.Parallel()
	name := model.Name{Namespace: "a", Name: "p"}
	p := &model.Policy{Kind: "K", Name: name, Tier: "t", Subject: model.Selector{Pods: &model.LabelSelector{}}, Ingress: []model.Rule{
		{Peers: []model.Peer{{Pods: &model.Selector{}}, {Nodes: &model.LabelSelector{}}, {}}, Other: &model.Entity{}},
	}}
	ch := &model.Changes{
		Pods:     map[model.Name]*model.Pod{name: {Name: name, Labels: map[string]string{}, Addrs: []netip.Addr{}, Ports: []model.PodPort{}}},
		Policies: map[model.PolicyID]*model.Policy{p.ID(): p}, ServiceCIDRs: []netip.Prefix{}, ServiceCIDRsChanged: true,
	}
	got, _ := send(t, ch, 0)
	if !reflect.DeepEqual(got.Policies, ch.Policies) {
		t.Errorf("%s", differ(ch, got))
	}
	if pod := got.Pods[name]; pod.Labels != nil || pod.Addrs != nil || pod.Ports != nil {
		t.Errorf("%+v", pod)
	}
	if !got.ServiceCIDRsChanged || got.ServiceCIDRs != nil || got.ReservedChanged {
		t.Errorf("%+v", got)
	}
}

func TestNothingIsOneMessage(t *testing.T) {
	t.Parallel()
	got, messages := send(t, &model.Changes{}, 0)
	if len(messages) != 1 || !got.Empty() {
		t.Errorf("%d messages, %+v", len(messages), got)
	}
}

// TestTextsAreBytes holds that one annotation that is not UTF-8 does not stop messages.
func TestTextsAreBytes(t *testing.T) {
	t.Parallel()
	name := model.Name{Namespace: "a", Name: "s"}
	ch := &model.Changes{Services: map[model.Name]*model.Service{name: {Name: name, Annotations: map[string]string{"k\xff": "\xc3\x28"}, Restricted: true}}}
	got, _ := send(t, ch, 0)
	if d := differ(ch, got); d != "" {
		t.Error(d)
	}
}

func TestEqualChangesGiveEqualMessages(t *testing.T) {
	t.Parallel()
	f := &filler{rand.New(rand.NewPCG(1, 4)), false}
	ch := f.changes(t, 60)
	_, first := send(t, ch, 5000)
	for range 5 {
		_, again := send(t, ch, 5000)
		if !reflect.DeepEqual(first, again) {
			t.Fatal("they differ")
		}
	}
}

// TestMessagesAreBounded holds how large messages are, and that a reader of a part of them stops
// the rest.
func TestMessagesAreBounded(t *testing.T) {
	t.Parallel()
	ch := cluster(30000)
	messages, err := Encoder{}.Marshal(ch)
	if err != nil {
		t.Fatal(err)
	}
	if len(messages) < 2 {
		t.Fatalf("%d messages", len(messages))
	}
	total := 0
	for i, b := range messages {
		total += len(b)
		if len(b) > Size+1000 || i < len(messages)-1 && len(b) < Size-Size/10 {
			t.Errorf("message %d has %d bytes", i, len(b))
		}
	}
	if each := float64(total) / 30000; each > 48 {
		t.Errorf("%.1f bytes a pod", each)
	}
	n := 0
	for range (Encoder{}).Messages(ch) {
		n++
		break
	}
	if n != 1 {
		t.Errorf("%d messages after the reader stopped", n)
	}
}

func TestTooLargeAnObject(t *testing.T) {
	t.Parallel()
	name := model.Name{Name: "s"}
	ch := &model.Changes{NetworkSets: map[model.Name]*model.NetworkSet{name: {Name: name, Nets: make([]netip.Prefix, 5<<20)}}}
	if _, err := (Encoder{}).Marshal(ch); err == nil {
		t.Error("it is sent")
	}
	if _, err := (&Decoder{}).Decode(make([]byte, MostSize+1)); err == nil {
		t.Error("any size is read")
	}
}

// TestPodsShare holds that pods hold one of what is equal, those of other messages included.
func TestPodsShare(t *testing.T) {
	t.Parallel()
	d := Decoder{Expression: everyExpression}
	messages, err := Encoder{Size: 20000}.Marshal(cluster(2000))
	if err != nil {
		t.Fatal(err)
	}
	maps, ports, texts := map[uintptr]bool{}, map[*model.PodPort]bool{}, map[*byte]bool{}
	for _, b := range messages {
		m, err := d.Decode(bytes.Clone(b))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range m.Changes.Pods {
			maps[reflect.ValueOf(p.Labels).Pointer()] = true
			ports[unsafe.SliceData(p.Ports)] = true
			texts[unsafe.StringData(p.Node)] = true
		}
	}
	if len(messages) < 3 || len(maps) != namespaces*labelSets || len(ports) != 1 || len(texts) != nodes {
		t.Errorf("%d messages: %d maps of labels, %d lists of ports, %d names of nodes", len(messages), len(maps), len(ports), len(texts))
	}
}
