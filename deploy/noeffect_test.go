// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/weir-net/weir/internal/apitest"
)

// Who writes what has no effect is warned by the API server, with the name of the field and why,
// and nothing is refused. What says what is so in any case gives no warning.
func TestWritersAreWarned(t *testing.T) {
	if !apitest.Isolated(t) {
		return
	}
	s := apitest.Start(t)
	said := &warnings{}
	cfg := rest.CopyConfig(s.Config)
	cfg.WarningHandler = said
	api, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	install(t, api)
	v3 := schema.GroupVersion{Group: "projectcalico.org", Version: "v3"}
	core := schema.GroupVersion{Version: "v1"}
	apps := schema.GroupVersion{Group: "apps", Version: "v1"}
	for _, c := range []struct {
		resource schema.GroupVersionResource
		object   string
		want     []string // none = nothing is said
	}{
		{v3.WithResource("felixconfigurations"), "{apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {name: node.a}, spec: {bpfEnabled: true, iptablesBackend: NFT, misspelt: [1], routeRefreshInterval: 10s}}",
			[]string{"no effect: spec.iptablesBackend, spec.misspelt, spec.routeRefreshInterval"}},
		{v3.WithResource("felixconfigurations"), "{apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {name: node.b}, spec: {bpfEnabled: true, logSeverityScreen: Info, xdpEnabled: true, maxIpsetSize: 1048576, dataplaneWatchdogTimeout: 90s}}", nil},
		{v3.WithResource("kubecontrollersconfigurations"), "{apiVersion: projectcalico.org/v3, kind: KubeControllersConfiguration, metadata: {name: a}, spec: {prometheusMetricsPort: 1, controllers: {node: {leakGracePeriod: 1h, syncLabels: Enabled}}}}",
			[]string{"spec.prometheusMetricsPort has no effect", "spec.controllers.node.leakGracePeriod has no effect"}},
		{v3.WithResource("ipamconfigurations"), "{apiVersion: projectcalico.org/v3, kind: IPAMConfiguration, metadata: {name: default}, spec: {strictAffinity: true, autoAllocateBlocks: false}}",
			[]string{"spec.autoAllocateBlocks has no effect"}},
		{v3.WithResource("kubecontrollersconfigurations"), "{apiVersion: projectcalico.org/v3, kind: KubeControllersConfiguration, metadata: {name: b}, spec: {prometheusMetricsPort: 9094, controllers: {node: {reconcilerPeriod: 5m0s}, policy: {}}}}", nil},
		{v3.WithResource("ippools"), "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: a}, spec: {cidr: 10.9.0.0/16, allowedUses: [Tunnel]}}", []string{"Tunnel has no effect"}},
		{v3.WithResource("ippools"), "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: b}, spec: {cidr: 10.8.0.0/16, allowedUses: [Workload, Tunnel]}}", nil},
		{core.WithResource("services"), `{apiVersion: v1, kind: Service, metadata: {name: a, annotations: {projectcalico.org/natExcludeService: "true"}}, spec: {ports: [{port: 80}]}}`, []string{"annotation projectcalico.org/natExcludeService has no effect"}},
		{core.WithResource("services"), `{apiVersion: v1, kind: Service, metadata: {name: b, annotations: {a: b}}, spec: {ports: [{port: 80}]}}`, nil},
		{apps.WithResource("deployments"), `{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}, annotations: {cni.projectcalico.org/ipAddrsNoIpam: "[]"}}, spec: {containers: [{name: a, image: a}]}}}}`,
			[]string{"annotation cni.projectcalico.org/ipAddrsNoIpam has no effect: every address"}},
	} {
		var u unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(c.object), &u.Object); err != nil {
			t.Fatal(err)
		}
		var to dynamic.ResourceInterface = api.Resource(c.resource)
		if c.resource.Group != v3.Group {
			to = api.Resource(c.resource).Namespace("default")
		}
		if c.want == nil {
			// The policies count by now: the object before this one was warned of.
			said.drain()
			if _, err := to.Create(t.Context(), &u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
				t.Error(err)
			}
			if got := said.drain(); got != "" {
				t.Errorf("%s: warned: %s", c.object, got)
			}
			continue
		}
		apitest.Eventually(t, time.Minute, c.object, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			said.drain()
			if _, err := to.Create(ctx, &u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
				return err
			}
			got := said.drain()
			if slices.ContainsFunc(c.want, func(w string) bool { return !strings.Contains(got, w) }) {
				return fmt.Errorf("warned %q, want %q", got, c.want)
			}
			return nil
		})
	}
}
