// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"

	"github.com/weir-net/weir/lab/internal/images"
	"github.com/weir-net/weir/lab/internal/plan"
	"sigs.k8s.io/yaml"
)

// TestKubeProxyManifest: nothing is left to be filled in, and what kubectl and kube-proxy read of
// it says what the lab is.
func TestKubeProxyManifest(t *testing.T) {
	for family, pods := range map[plan.Family]string{plan.IPv4: "10.244.0.0/16", plan.Dual: "10.244.0.0/16,fd00:10:244::/56", plan.IPv6: "fd00:10:244::/56"} {
		l, err := plan.New("t", 1, family, false)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for _, text := range strings.Split(kubeProxyManifest(l, "iptables"), "\n---\n") {
			var o struct {
				Kind     string
				Metadata struct{ Name, Namespace string }
				Data     map[string]string
				Spec     struct {
					Template struct {
						Spec struct {
							HostNetwork bool
							Containers  []struct{ Image string }
						}
					}
				}
			}
			if err := yaml.Unmarshal([]byte(text), &o); err != nil {
				t.Fatalf("%v:\n%s", err, text)
			}
			found[o.Kind+" "+o.Metadata.Namespace+"/"+o.Metadata.Name] = true
			switch pod := o.Spec.Template.Spec; o.Kind {
			case "DaemonSet":
				if !pod.HostNetwork || len(pod.Containers) != 1 || pod.Containers[0].Image != images.KubeProxyImage {
					t.Errorf("%+v", pod)
				}
			case "ConfigMap":
				var c struct {
					Mode, ClusterCIDR string
					OOMScoreAdj       *int
				}
				if err := yaml.Unmarshal([]byte(o.Data["config.conf"]), &c); err != nil {
					t.Fatal(err)
				}
				if c.Mode != "iptables" || c.ClusterCIDR != pods || c.OOMScoreAdj == nil || *c.OOMScoreAdj != 0 {
					t.Errorf("%s: %+v", family, c)
				}
				if !strings.Contains(o.Data["kubeconfig.conf"], "server: "+l.APIServer()+"\n") {
					t.Error(o.Data["kubeconfig.conf"])
				}
			}
		}
		for _, want := range []string{"DaemonSet kube-system/kube-proxy", "ConfigMap kube-system/kube-proxy", "ServiceAccount kube-system/kube-proxy"} {
			if !found[want] {
				t.Errorf("no %s among %v", want, found)
			}
		}
	}
}
