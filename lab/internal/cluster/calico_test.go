// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weir-net/weir/lab/internal/images"
)

// aCalicoManifest has the objects of Calico's own that are changed or left out.
const aCalicoManifest = `---
kind: CustomResourceDefinition
metadata: {name: ippools.crd.projectcalico.org}
---
kind: ClusterRole
metadata: {name: calico-node}
---
kind: Deployment
metadata: {name: calico-kube-controllers}
---
kind: ConfigMap
metadata: {name: calico-config}
data:
  calico_backend: vxlan
  cni_network_config: |-
    {"name": "k8s-pod-network", "plugins": [{"type": "calico", "mtu": __CNI_MTU__}, {"type": "portmap"}, {"type": "bandwidth"}]}
---
kind: DaemonSet
metadata: {name: calico-node}
spec:
  template:
    spec:
      initContainers: [{name: upgrade-ipam}, {name: install-cni}, {name: mount-bpffs}]
      containers:
      - name: calico-node
        image: IMAGE
        env: [{name: DATASTORE_TYPE, value: kubernetes}, {name: CALICO_IPV4POOL_IPIP, value: Always}]
        livenessProbe: {exec: {command: [/bin/calico-node, -felix-live, -bird-live]}}
        volumeMounts: [{name: lib-modules, mountPath: /lib/modules}, {name: xtables-lock, mountPath: /run/xtables.lock}]
`

func TestCalicoManifest(t *testing.T) {
	raw, err := calicoManifest([]byte(strings.Replace(aCalicoManifest, "IMAGE", images.CalicoNodeImage, 1)))
	if err != nil {
		t.Fatal(err)
	}
	got := string(raw)
	for _, gone := range []string{"kube-controllers", "bandwidth", "upgrade-ipam", "mount-bpffs", "lib-modules", "value: Always", "-bird-live"} {
		if strings.Contains(got, gone) {
			t.Errorf("%s is left in\n%s", gone, got)
		}
	}
	for _, want := range []string{"ippools.crd.projectcalico.org", "name: install-cni", "name: xtables-lock", "-felix-live", "value: 10.244.0.0/16", `"mtu":__CNI_MTU__`, `"type":"portmap"`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing in\n%s", want, got)
		}
	}
	_, conf, _ := strings.Cut(got, "cni_network_config: '")
	conf, _, _ = strings.Cut(conf, "'\n")
	if conf = strings.Replace(conf, "__CNI_MTU__", "0", 1); !json.Valid([]byte(conf)) {
		t.Errorf("the network configuration is %s", conf)
	}
	// Another release of Calico than the lab's image is not run with it.
	if _, err := calicoManifest([]byte(aCalicoManifest)); err == nil {
		t.Error("a manifest with another image is accepted")
	}
	if _, err := calicoManifest([]byte("---\nkind: ClusterRole\n")); err == nil {
		t.Error("a manifest without a DaemonSet is accepted")
	}
}
