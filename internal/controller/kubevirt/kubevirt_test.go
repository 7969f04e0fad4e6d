// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"log/slog"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// world is a cluster whose objects a test changes between looks at it.
type world struct {
	t    *testing.T
	c    *Controller
	kube *kubefake.Clientset
	api  *dynamicfake.FakeDynamicClient
}

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	var u unstructured.Unstructured
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return &u
}

func newWorld(t *testing.T, setting string) *world {
	reservations := v3.SchemeGroupVersion.WithResource("ipreservations")
	w := &world{t: t, kube: kubefake.NewClientset(), api: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{instances: "VirtualMachineInstanceList", migrations: "VirtualMachineInstanceMigrationList", machines: "VirtualMachineList",
			weirv1.IPAMBlocks: "IPAMBlockList", reservations: "IPReservationList"})}
	w.c = New(Config{Kube: w.kube, Dynamic: w.api, Log: slog.New(slog.DiscardHandler)})
	w.put(v3.SchemeGroupVersion.WithResource("ipamconfigurations"), "apiVersion: projectcalico.org/v3\nkind: IPAMConfiguration\nmetadata: {name: default}\nspec: {kubeVirtVMAddressPersistence: "+setting+"}")
	w.put(reservations, "apiVersion: projectcalico.org/v3\nkind: IPReservation\nmetadata: {name: r}\nspec: {reservedCIDRs: [10.244.1.60/32]}")
	for name, of := range map[string]string{"10-244-1-0-26": "cidr: 10.244.1.0/26, node: n1", "10-244-2-0-26": "cidr: 10.244.2.0/26, node: n2"} {
		w.put(weirv1.IPAMBlocks, "apiVersion: weir.dev/v1\nkind: IPAMBlock\nmetadata: {name: "+name+"}\nspec: {"+of+", pool: default}")
	}
	w.put(machines, "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: a, namespace: shop, uid: vm}")
	return w
}

// put makes an object, or replaces it.
func (w *world) put(of schema.GroupVersionResource, text string) {
	w.t.Helper()
	u := object(w.t, text)
	to := w.api.Resource(of).Namespace(u.GetNamespace())
	if _, err := to.Create(w.t.Context(), u, metav1.CreateOptions{}); err != nil {
		if _, err := to.Update(w.t.Context(), u, metav1.UpdateOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) drop(of schema.GroupVersionResource, name string) {
	w.t.Helper()
	if err := w.api.Resource(of).Namespace("shop").Delete(w.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// run makes a pod of the machine; without addresses it was not started yet.
func (w *world) run(p corev1.Pod, addrs ...string) {
	w.t.Helper()
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	p.Labels[model.LabelKubeVirt], p.Labels[model.LabelKubeVirtInstance] = model.KubeVirtLauncher, string(p.OwnerReferences[0].UID)
	p.Status.PodIPs = nil
	for _, a := range addrs {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	pods := w.kube.CoreV1().Pods("shop")
	if _, err := pods.Create(w.t.Context(), &p, metav1.CreateOptions{}); err != nil {
		if _, err := pods.Update(w.t.Context(), &p, metav1.UpdateOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// look looks at the machine, and returns the block of an address; nil = there is none.
func (w *world) look(block string) *weirv1.IPAMBlockSpec {
	w.t.Helper()
	w.c.stores = map[schema.GroupVersionResource]cache.Store{}
	for _, of := range []schema.GroupVersionResource{instances, migrations, machines, weirv1.IPAMBlocks} {
		w.c.stores[of] = cache.NewStore(cache.MetaNamespaceKeyFunc)
		list, err := w.api.Resource(of).List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
		for i := range list.Items {
			if err := w.c.stores[of].Add(&list.Items[i]); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	if err := w.c.reconcile(w.t.Context(), model.Name{Namespace: "shop", Name: "a"}); err != nil {
		w.t.Fatal(err)
	}
	b, err := w.c.blocks.Get(w.t.Context(), block)
	if err != nil {
		return nil
	}
	return &b.Spec
}

const own = "10-244-1-2-32"

// TestMachine follows a machine from its first pod over a migration and a restart to its end.
func TestMachine(t *testing.T) {
	w := newWorld(t, "Enabled")
	is := func(what, node, pod, target string) {
		t.Helper()
		s := w.look(own)
		if s == nil || s.VirtualMachine == nil {
			t.Fatalf("%s: %+v", what, s)
		}
		got := ""
		if s.VirtualMachine.Target != nil {
			got = s.VirtualMachine.Target.Node + " " + s.VirtualMachine.Target.Pod
		}
		if s.Node != node || s.VirtualMachine.Pod != pod || got != target || s.Pool != "default" || s.VirtualMachine.Name != "shop/a" || s.VirtualMachine.UID != "vm" {
			t.Errorf("%s: %+v, %+v", what, s, s.VirtualMachine)
		}
	}
	w.put(instances, running)
	w.run(podOf("one", "n1", "", time.Hour), "10.244.1.2")
	is("running", "n1", "one", "")
	const moving = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstanceMigration\nmetadata: {name: m, namespace: shop, uid: m1}\nspec: {vmiName: a}\nstatus: {phase: "
	w.put(migrations, moving+"Scheduling}")
	w.run(podOf("two", "n2", "m1", time.Minute))
	is("moved", "n1", "one", "n2 two")
	w.put(migrations, moving+"Failed}")
	is("failed", "n1", "one", "")
	w.put(migrations, moving+"Running}")
	is("moved again", "n1", "one", "n2 two")
	w.put(instances, running[:len(running)-1]+"\n  migrationState: {migrationUid: m1, targetPod: launcher-two, completed: true}\n")
	u := object(t, running)
	if err := unstructured.SetNestedField(u.Object, "n2", "status", "nodeName"); err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(u.Object)
	if err != nil {
		t.Fatal(err)
	}
	w.put(instances, string(text))
	w.put(migrations, moving+"Succeeded}")
	w.run(podOf("two", "n2", "m1", time.Minute), "10.244.1.2")
	is("over there", "n2", "two", "")

	w.drop(instances, "a")
	is("stopped", "n2", "two", "")
	w.put(instances, "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: a, namespace: shop, uid: again, ownerReferences: [{apiVersion: kubevirt.io/v1, kind: VirtualMachine, name: a, uid: vm, controller: true}]}\nstatus: {activePods: {three: n1}}")
	again := podOf("three", "n1", "", 0)
	again.OwnerReferences[0].UID = "again"
	w.run(again)
	is("started again", "n1", "three", "")
	w.drop(instances, "a")
	w.drop(machines, "a")
	if s := w.look(own); s != nil {
		t.Errorf("the machine is gone, and its address is kept: %+v", s)
	}
}

// TestNothingKept: no address is kept while that is off, nor one that lies in no block of the node
// or that is reserved.
func TestNothingKept(t *testing.T) {
	for name, c := range map[string]struct{ setting, addr, block string }{
		"off":                   {"Disabled", "10.244.1.2", own},
		"in another node's":     {"Enabled", "10.244.2.2", "10-244-2-2-32"},
		"reserved":              {"Enabled", "10.244.1.60", "10-244-1-60-32"},
		"in no block":           {"Enabled", "10.9.9.9", "10-9-9-9-32"},
		"in a block of its own": {"Enabled", "10.244.1.2", own},
	} {
		w := newWorld(t, c.setting)
		if name == "in a block of its own" {
			w.put(weirv1.IPAMBlocks, "apiVersion: weir.dev/v1\nkind: IPAMBlock\nmetadata: {name: 10-244-1-0-26}\nspec: {cidr: 10.244.1.2/32, node: n1, pool: default}")
		}
		w.put(instances, running)
		w.run(podOf("one", "n1", "", time.Hour), c.addr)
		if s := w.look(c.block); s != nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
