// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bytes"
	"os"
	"testing"
	"time"

	v1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/nettest"
)

// switchesEnv is how often the agent changes its data plane; nothing is measured where it is not
// set.
const switchesEnv = "WEIR_SCALE_SWITCHES"

// TestChangesDuringSwitch measures how long a change at the API server takes to have an effect on
// new connections, with one in every 100 ms while the agent changes its data plane again and again,
// from the first patch until each start at the end of a change is over.
func TestChangesDuringSwitch(t *testing.T) {
	if os.Getenv(switchesEnv) == "" || os.Getenv(agentEnv) == "" {
		t.Skip("measures when " + switchesEnv + " and " + agentEnv + " are set, as root")
	}
	nettest.NeedRoot(t, "making network namespaces")
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
	for i := range number(t, switchesEnv, 10) {
		w.flips(&quiet, forSpan(2*time.Second))
		patch := map[bool]string{true: `{"spec":{"bpfEnabled":false}}`, false: `{"spec":{"bpfEnabled":true}}`}[i%2 == 0]
		w.say("%s at %s", patch, time.Now().Format("15:04:05.000"))
		_, err := felix.Patch(w.ctx, "default", types.MergePatchType, []byte(patch), v1.PatchOptions{})
		w.must(err)
		w.flips(&during, func() bool { return changed() > i })
		w.say("the data plane has changed at %s", time.Now().Format("15:04:05.000"))
		w.flips(&during, forSpan(5*time.Second)) // and the agent starts
	}
	w.summarize("while nothing else changes", quiet)
	w.summarize("during changes of the data plane", during)
	if path := os.Getenv(outEnv); path != "" {
		w.must(os.WriteFile(path, p.log(), 0o644))
	}
}
