package scale

import (
	"bytes"
	"os"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/bench"
)

// switchesEnv is how often the agent changes its data plane; nothing is measured where it is not set.
const switchesEnv = "WEIR_SCALE_SWITCHES"

// TestChangesDuringSwitch measures how long a change at the API server takes to have an effect on new connections, with one in every 100 ms while the agent changes its data
// plane again and again, from the first patch until each start at the end of a change is over.
func TestChangesDuringSwitch(t *testing.T) {
	if os.Geteuid() != 0 || os.Getenv(switchesEnv) == "" || os.Getenv(agentEnv) == "" {
		t.Skip("measures when " + switchesEnv + " and " + agentEnv + " are set, as root")
	}
	if !apitest.IsolatedFor(t, 15*time.Minute) {
		return
	}
	w := newWorld(t)
	w.grow(10)
	p := w.plane("weir")
	defer p.cleanup()
	w.start(p)
	defer p.stop()
	felix := w.server.Clients.Dynamic.Resource(schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "felixconfigurations"})
	_, err := felix.Create(w.ctx, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "projectcalico.org/v3", "kind": "FelixConfiguration",
		"metadata": map[string]any{"name": "default"}, "spec": map[string]any{"bpfEnabled": true}}}, v1.CreateOptions{})
	w.must(err)
	changed := func() int { return bytes.Count(p.log(), []byte("the data plane has changed;")) }
	var quiet, during []float64
	flips := func(into *[]float64, until func() bool) {
		for !until() {
			began := time.Now()
			_, effect := w.flip()
			*into = append(*into, effect.Seconds()*1000)
			if effect > time.Second {
				w.say("a change at %s had its effect after %s", began.Format("15:04:05.000"), effect.Round(time.Millisecond))
			}
			pause(w.ctx, 100*time.Millisecond-time.Since(began))
		}
	}
	span := func(d time.Duration) func() bool {
		end := time.Now().Add(d)
		return func() bool { return time.Now().After(end) }
	}
	for i := range number(t, switchesEnv, 10) {
		flips(&quiet, span(2*time.Second))
		patch := map[bool]string{true: `{"spec":{"bpfEnabled":false}}`, false: `{"spec":{"bpfEnabled":true}}`}[i%2 == 0]
		w.say("%s at %s", patch, time.Now().Format("15:04:05.000"))
		_, err := felix.Patch(w.ctx, "default", types.MergePatchType, []byte(patch), v1.PatchOptions{})
		w.must(err)
		flips(&during, func() bool { return changed() > i })
		w.say("the data plane has changed at %s", time.Now().Format("15:04:05.000"))
		flips(&during, span(5*time.Second)) // and the agent starts
	}
	for name, all := range map[string][]float64{"while nothing else changes": quiet, "during changes of the data plane": during} {
		s := bench.Summarize(all)
		w.say("%d changes %s: p50 %.0f ms, p99 %.0f, longest %.0f", len(all), name, s.P50, s.P99, slices.Max(all))
	}
	if limit := 1000.0; bench.Summarize(during).P99 > limit {
		w.say("p99 is beyond %.0f ms", limit)
	}
	if path := os.Getenv(outEnv); path != "" {
		w.must(os.WriteFile(path, p.log(), 0o644))
	}
}
