// SPDX-License-Identifier: Apache-2.0

package fromflannel

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/weir-net/weir/deploy"
)

func object(kind, name string, labels, annotations map[string]string, spec, status map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec, "status": status}}
	u.SetLabels(labels)
	u.SetAnnotations(annotations)
	if kind == "Pod" {
		u.SetNamespace("kube-flannel")
	}
	return u
}

func of(t *testing.T, objects ...runtime.Object) *Node {
	t.Helper()
	api := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		{Version: "v1", Resource: "nodes"}: "NodeList", {Version: "v1", Resource: "pods"}: "PodList"}, objects...)
	return Open([]string{"WEIR_TAKE_OVER=flannel"}, "n1", t.TempDir(), api, slog.New(slog.DiscardHandler))
}

// TestMAC: frames for a node with flannel bear its device's address, those for others any; a node
// of which nothing is known is an error, not a guess.
func TestMAC(t *testing.T) {
	const data = "flannel.alpha.coreos.com/backend-data"
	n := of(t, object("Node", "old", nil, map[string]string{data: `{"VNI":1,"VtepMAC":"5e:ae:2a:81:0c:11"}`}, nil, nil),
		object("Node", "new", map[string]string{deploy.NetworkLabel: deploy.NetworkWeir}, nil, nil, nil), object("Node", "starts", nil, nil, nil, nil),
		object("Node", "forged", nil, map[string]string{data: `{"VtepMAC":"ff:ff:ff:ff:ff:ff"}`}, nil, nil))
	if _, err := n.MAC("old"); err == nil {
		t.Error("an address is known before nodes were read")
	}
	if err := n.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if mac, err := n.MAC("old"); err != nil || mac != [6]byte{0x5e, 0xae, 0x2a, 0x81, 0x0c, 0x11} {
		t.Errorf("%x %v", mac, err)
	}
	if mac, err := n.MAC("new"); err != nil || mac != anyMAC || mac[0]&1 != 0 {
		t.Errorf("%x %v", mac, err)
	}
	for _, name := range []string{"starts", "forged", "unknown"} {
		if mac, err := n.MAC(name); err == nil {
			t.Errorf("node %s has %x", name, mac)
		}
	}
}

// TestFlannelRuns: nothing is touched while flannel's pod runs.
func TestFlannelRuns(t *testing.T) {
	n := of(t, object("Pod", "kube-flannel-ds-x", map[string]string{"app": "flannel"}, nil, map[string]any{"nodeName": "n1", "hostNetwork": true}, map[string]any{"phase": "Running"}))
	conf := filepath.Join(n.confDir, "10-flannel.conflist")
	if err := os.WriteFile(conf, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.Begin(t.Context()); err == nil || !strings.Contains(err.Error(), "flannel has to end first") {
		t.Fatalf("%v", err)
	}
	if _, err := os.Stat(conf); err != nil {
		t.Error(err)
	}
	if err := n.setAside(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(conf + ".before-weir"); err != nil {
		t.Error(err)
	}
}

func TestOpen(t *testing.T) {
	for _, environ := range [][]string{nil, {"WEIR_TAKE_OVER=calico"}} {
		n := Open(environ, "n1", "", nil, slog.New(slog.DiscardHandler))
		if n != nil || n.Begin(t.Context()) != nil || n.Run(t.Context()) != nil {
			t.Errorf("%q: %v", environ, n)
		}
	}
}
