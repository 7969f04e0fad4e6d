// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

func vmi(t *testing.T, text string) *instance {
	t.Helper()
	var u unstructured.Unstructured
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	stripped, err := strip(&u)
	if err != nil {
		t.Fatal(err)
	}
	v, err := decode[instance](stripped.(*unstructured.Unstructured))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

const running = `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: a
  namespace: shop
  uid: vmi
  ownerReferences: [{apiVersion: kubevirt.io/v1, kind: VirtualMachine, name: a, uid: vm, controller: true}]
spec:
  domain: {devices: {interfaces: [{name: other, masquerade: {}}, {name: default, bridge: {}}]}}
  networks: [{name: other, multus: {networkName: x}}, {name: default, pod: {}}]
  volumes: [{name: secret, cloudInitNoCloud: {userData: "password: x"}}]
status:
  nodeName: n1
  activePods: {one: n1, two: n2, three: n3}
  interfaces: [{name: other, mac: "02:00:00:00:00:09"}, {name: default, mac: "02:00:00:00:00:01"}]
`

// podOf is a pod that says that the instance owns it.
func podOf(uid, node, migration string, age time.Duration) corev1.Pod {
	yes := true
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "launcher-" + uid, Namespace: "shop", UID: types.UID(uid), CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age)),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "a", UID: "vmi", Controller: &yes}}}}
	p.Spec.NodeName = node
	p.Status.PodIPs = []corev1.PodIP{{IP: "10.244.1.2"}, {IP: "fd00::2"}}
	if migration != "" {
		p.Labels = map[string]string{model.LabelKubeVirtMigration: migration}
	}
	return p
}

func TestInstance(t *testing.T) {
	v := vmi(t, running)
	if v.owner() != "vm" || v.mac() != "02:00:00:00:00:01" {
		t.Errorf("owner %q, MAC %q", v.owner(), v.mac())
	}
	v.OwnerReferences = nil
	v.Spec.Domain.Devices.Interfaces[1].Bridge = nil
	if v.owner() != "vmi" || v.mac() != "" {
		t.Errorf("alone, without a bridge: owner %q, MAC %q", v.owner(), v.mac())
	}
}

func TestPlace(t *testing.T) {
	one, two, three := podOf("one", "n1", "", time.Hour), podOf("two", "n2", "m1", time.Minute), podOf("three", "n3", "m2", time.Second)
	state := func(text string) string { return running + "  migrationState: " + text }
	for name, c := range map[string]struct {
		vmi          string
		pods         []corev1.Pod
		moving       []string
		home, target string
	}{
		"alone":                    {running, []corev1.Pod{one}, nil, "one", ""},
		"moved":                    {running, []corev1.Pod{two, one}, []string{"m1"}, "one", "two"},
		"the migration is over":    {running, []corev1.Pod{one, two}, nil, "one", ""},
		"failed":                   {state("{migrationUid: m1, failed: true}"), []corev1.Pod{one, two}, []string{"m1"}, "one", ""},
		"of two, KubeVirt's":       {state("{migrationUid: m2, targetPod: launcher-three}"), []corev1.Pod{one, two, three}, []string{"m1", "m2"}, "one", "three"},
		"failed, and tried again":  {state("{migrationUid: m1, failed: true}"), []corev1.Pod{one, two, three}, []string{"m1", "m2"}, "one", "three"},
		"no pod on the node":       {running, []corev1.Pod{two}, []string{"m1"}, "", ""},
		"not started, and its pod": {"apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: a, uid: vmi}\nstatus: {activePods: {one: n1}}", []corev1.Pod{one}, nil, "one", ""},
	} {
		v := vmi(t, c.vmi)
		moving := map[string]bool{}
		for _, m := range c.moving {
			moving[m] = true
		}
		home, target := v.place(v.launchers(c.pods), moving)
		uid := func(l *launcher) string {
			if l == nil {
				return ""
			}
			return l.uid
		}
		if uid(home) != c.home || uid(target) != c.target {
			t.Errorf("%s: home %q, target %q, want %q and %q", name, uid(home), uid(target), c.home, c.target)
		}
	}
}

// TestHostilePodOfMachine: a pod that says that a virtual machine owns it gets nothing of it where
// KubeVirt does not name it, or it is of no migration that goes on, or of another instance.
func TestHostilePodOfMachine(t *testing.T) {
	hostile.Record(t, "a pod claims a virtual machine that does not run in it, and would have the machine's address", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	one := podOf("one", "n1", "", time.Hour)
	for name, change := range map[string]func(*corev1.Pod){
		"not named by KubeVirt":     func(p *corev1.Pod) { p.UID = "nobody" },
		"of no migration":           func(p *corev1.Pod) { p.Labels = nil },
		"of a migration that ended": func(p *corev1.Pod) { p.Labels[model.LabelKubeVirtMigration] = "m0" },
		"of another instance":       func(p *corev1.Pod) { p.OwnerReferences[0].UID = "other" },
		"owned by another kind":     func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "shop.example/v1" },
		"owned, not controlled":     func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil },
		"on another node than said": func(p *corev1.Pod) { p.Spec.NodeName = "n3" },
		"over":                      func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
	} {
		p := podOf("two", "n2", "m1", time.Minute)
		change(&p)
		v := vmi(t, running)
		if home, target := v.place(v.launchers([]corev1.Pod{p, one}), map[string]bool{"m1": true}); home == nil || home.uid != "one" || target != nil {
			t.Errorf("%s: home %v, target %v", name, home, target)
		}
	}
}

// TestSettle: the node of a block follows the machine; a target that has taken it keeps it until
// the migration is given up.
func TestSettle(t *testing.T) {
	one, two := &launcher{uid: "one", node: "n1"}, &launcher{uid: "two", node: "n2"}
	s := &weirv1.IPAMBlockSpec{Node: "n1", VirtualMachine: &weirv1.BlockVirtualMachine{Name: "shop/a", UID: "vm", Pod: "one", MAC: "02:00:00:00:00:01"}}
	step := func(what string, mac string, home, target *launcher, changes bool, node string) {
		t.Helper()
		if got := settle(s, "shop/a", "vm", mac, home, target); got != changes || s.Node != node || s.VirtualMachine.Pod != home.uid || (s.VirtualMachine.Target != nil) != (target != nil) {
			t.Errorf("%s: changed %t, %+v of %+v", what, got, s, s.VirtualMachine)
		}
		if s.VirtualMachine.MAC != "02:00:00:00:00:01" {
			t.Errorf("%s: MAC address %q", what, s.VirtualMachine.MAC)
		}
	}
	step("as it was", "", one, nil, false, "n1")
	step("moved", "02:00:00:00:00:01", one, two, true, "n1")
	step("moved, again", "02:00:00:00:00:01", one, two, false, "n1")
	s.Node = "n2" // the agent of n2
	step("taken", "02:00:00:00:00:01", one, two, false, "n2")
	step("given up", "", one, nil, true, "n1")
	s.Node, s.VirtualMachine.Target = "n2", &weirv1.BlockTarget{Node: "n2", Pod: "two"}
	step("completed", "02:00:00:00:00:01", two, nil, true, "n2")
}
