// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weir-net/weir/internal/await"
)

// TestEndpointChange measures from the API's event of a change of an EndpointSlice until requests
// go where it says, on several ways at once.
func TestEndpointChange(t *testing.T) {
	b := sharedBase(t)
	ctx := context.Background()
	ip := b.service(t, "manual", nil, 30740, nil).Spec.ClusterIP
	slices := b.kube.DiscoveryV1().EndpointSlices(b.ns)
	if _, err := slices.Create(ctx, b.slice("manual", b.srv1.addr), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := slices.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=manual"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	b.client(1).soon(t, at(cpAddr, 30740+nodeWho), true)
	b.cli1.soon(t, at(ip, whoPort), true)
	probes := map[string]*running{
		"pod, UDP, packet path":         b.cli1.begin(t, "probe", "--udp", at(ip, udpPort)),
		"pod, TCP, at connect":          b.cli1.begin(t, "probe", at(ip, whoPort)),
		"client, TCP, node port remote": b.client(1).begin(t, "probe", at(cpAddr, 30740+nodeWho)),
	}
	// Kubernetes' own history of the object: the events up to now.
	var times []float64
	byPath := map[string][]float64{}
	steps := []struct{ addr, name string }{{b.srv2.addr, "srv2"}, {b.srv1.addr, "srv1"}, {"", "-"}, {b.srv1.addr, "srv1"}, {"", "-"}, {b.srv2.addr, "srv2"}, {b.srv1.addr, "srv1"}}
	events := make(chan [2]int64, 64) // resource version, when
	go func() {
		for e := range w.ResultChan() {
			if s, ok := e.Object.(*discoveryv1.EndpointSlice); ok {
				var rv int64
				fmt.Sscan(s.ResourceVersion, &rv)
				events <- [2]int64{rv, time.Now().UnixNano()}
			}
		}
	}()
	const latency = "kubeproxy_network_programming_duration_seconds"
	before := map[string]map[string]float64{}
	for node := range nodes {
		b.metricsOn(t, node)
		before[node] = b.metrics(t, node)
	}
	const changes = 56
	measured := time.Now()
	for i := range changes {
		step := steps[i%len(steps)]
		changed, err := slices.Patch(ctx, "manual", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}},"endpoints":%s}`,
			corev1.EndpointsLastChangeTriggerTime, time.Now().Format(time.RFC3339Nano), endpoints(step.addr)), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		answered := time.Now().UnixNano()
		began := eventTime(t, events, changed.ResourceVersion, answered)
		for path, r := range probes {
			ms, err := effect(r, step.name, began)
			if err != nil {
				t.Fatalf("change %d, to %q, %s: %v", i, step.name, path, err)
			}
			times = append(times, ms)
			byPath[path] = append(byPath[path], ms)
		}
	}
	// Every node measures each change itself, and one of them has the controller's metrics, too. Of
	// changes that a node was late for the last counts: each does where its effect was waited for.
	leaders := 0.0
	for node := range nodes {
		least := 1.0
		if node == "cp" || node == b.cli1.machine {
			least = changes
		}
		eventually(t, 10*time.Second, "latency of changes at "+node, func() error {
			now := b.metrics(t, node)
			n, sum := now[latency+"_count"]-before[node][latency+"_count"], now[latency+"_sum"]-before[node][latency+"_sum"]
			if n < least || sum <= 0 {
				return fmt.Errorf("%v changes that took %v s are in the metric, want %v", n, sum, least)
			}
			return nil
		})
		leaders += b.metrics(t, node)["weir_controller_leader"]
	}
	if leaders != 1 {
		t.Errorf("the nodes' metrics have %v controllers that lead", leaders)
	}
	for path, ms := range byPath {
		note(t, path+": p50 (ms)", percentile(ms, 0.5))
		note(t, path+": p99 (ms)", percentile(ms, 0.99))
	}
	p99, most := percentile(times, 0.99), percentile(times, 1)
	note(t, "all: p50 (ms)", percentile(times, 0.5))
	note(t, "all: p99 (ms)", p99)
	note(t, "all: max (ms)", most)
	late := control.since(measured, 0.99)
	note(t, "lateness of the machine: p99 (ms)", late)
	if limit := 100 + 4*late; *strictTiming && p99 > limit {
		t.Errorf("p99 from event to effect is %.0f ms, want at most %.0f, of which %.0f are the machine's; max %.0f", p99, limit, limit-100, most)
	}
}

// eventTime is when the change was first heard of: by its watch event or by the answer to the one
// who made it.
func eventTime(t *testing.T, events <-chan [2]int64, version string, answered int64) int64 {
	t.Helper()
	var want int64
	fmt.Sscan(version, &want)
	limit := time.After(await.Patience)
	for {
		select {
		case e := <-events:
			if e[0] >= want {
				return min(e[1], answered)
			}
		case <-limit:
			t.Fatal("the watch did not report the change")
		}
	}
}

// effect returns how long after began (ns) the first request was sent that the named server
// answered, ms; 0 when that was before.
func effect(r *running, name string, began int64) (float64, error) {
	for start := time.Now(); time.Since(start) < await.Patience; time.Sleep(2 * time.Millisecond) {
		lines := r.seen()
		if f := strings.Fields(lines[len(lines)-1]); len(f) == 2 && f[1] == name {
			var ns int64
			fmt.Sscan(f[0], &ns)
			return max(0, float64(ns-began)/1e6), nil
		}
	}
	lines := r.seen()
	return 0, fmt.Errorf("no effect; the last answers are %q", lines[max(0, len(lines)-3):])
}

func endpoints(addr string) string {
	if addr == "" {
		return "[]"
	}
	return fmt.Sprintf(`[{"addresses":[%q],"conditions":{"ready":true}}]`, addr)
}

// slice is an EndpointSlice made by hand for a Service without selector.
func (s *space) slice(service, addr string) *discoveryv1.EndpointSlice {
	ready := true
	out := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service, Namespace: s.ns, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{addr}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}
	for _, p := range []struct {
		name string
		port int32
	}{{"http", httpPort}, {"who", whoPort}, {"echo", echoPort}, {"udp", udpPort}} {
		port := discoveryv1.EndpointPort{Name: &p.name, Port: &p.port}
		if p.name == "udp" {
			udp := udpProtocol
			port.Protocol = &udp
		}
		out.Ports = append(out.Ports, port)
	}
	return out
}
