// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	ipamv3 "github.com/weir-net/weir/api/ipam/v3"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
)

// Handles as Calico's kube-controllers name them: SHA-256 of NAME-NAMESPACE-UID, in base64 without
// "-" and "_".
const (
	webHandle = "lb-KiDoLvquRUGKZw6Mn4oTyTfTNefzU40vw4plVTdUU"
	dnsHandle = "lb-eoOgTMC7endpb6ysoYkMKWyRJd50mvuwRq5x8gmMHU"
)

func balancerBlock(cidr string, allocations ...weirv1.Allocation) weirv1.IPAMBlock {
	name := weirv1.BlockName(netip.MustParsePrefix(cidr))
	return weirv1.IPAMBlock{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid"}, Spec: weirv1.IPAMBlockSpec{CIDR: cidr, Node: weirv1.LoadBalancers, Allocations: allocations}}
}

// Addresses of load balancers are shown as Calico shows them, follow what the blocks say, and are
// written only where something changed, some at a time.
func TestShowBalancers(t *testing.T) {
	api := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		ipamv3.IPAMBlocks: "IPAMBlockList", ipamv3.IPAMHandles: "IPAMHandleList", ipamv3.BlockAffinities: "BlockAffinityList"})
	show := func(blocks ...weirv1.IPAMBlock) string {
		t.Helper()
		api.ClearActions()
		if err := ShowBalancers(t.Context(), api, blocks); err != nil {
			t.Fatal(err)
		}
		var did []string
		for _, a := range api.Actions() {
			switch a := a.(type) {
			case clienttesting.CreateAction: // and of updates
				did = append(did, a.GetVerb()+" "+a.GetObject().(*unstructured.Unstructured).GetName())
			case clienttesting.DeleteAction:
				did = append(did, "delete "+a.GetName())
			}
		}
		return strings.Join(did, ", ")
	}
	web := weirv1.Allocation{Address: "192.0.2.1", Service: "shop/web", UID: "uid-1"}
	web6 := weirv1.Allocation{Address: "2001:db8::1", Service: "shop/web", UID: "uid-1"}
	dns := weirv1.Allocation{Address: "192.0.2.3", Service: "shop/dns", UID: "uid-2"}
	ofNode := balancerBlock("10.244.0.0/30")
	ofNode.Spec.Node = "n1"
	four, six := balancerBlock("192.0.2.0/30", dns, web), balancerBlock("2001:db8::/126", web6)
	lower := strings.ToLower
	want := fmt.Sprintf("create %s, create %s, create load-balancer-192-0-2-0-30, create load-balancer-2001-db8---126, create 192-0-2-0-30, create 2001-db8---126", lower(dnsHandle), lower(webHandle))
	if got := show(four, ofNode, six); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := show(six, four); got != "" {
		t.Errorf("nothing changed: %s", got)
	}
	get := func(r schema.GroupVersionResource, name string, into any) *unstructured.Unstructured {
		t.Helper()
		u, err := api.Resource(r).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, into)
		}
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	var b ipamv3.IPAMBlock
	u := get(ipamv3.IPAMBlocks, "192-0-2-0-30", &b)
	if o := u.GetOwnerReferences(); len(o) != 1 || o[0].APIVersion != "weir.dev/v1" || o[0].Kind != "IPAMBlock" {
		t.Errorf("the owners are %v", o)
	}
	if a := b.Spec.Allocations; *b.Spec.Affinity != "virtual:load-balancer" || len(a) != 4 || a[0] != nil || *a[1] != 1 || a[2] != nil || *a[3] != 0 || fmt.Sprint(b.Spec.Unallocated) != "[0 2]" {
		t.Errorf("the block is %+v", b.Spec)
	}
	if a := b.Spec.Attributes[1]; *a.HandleID != webHandle || fmt.Sprint(a.Secondary) != "map[namespace:shop service:web type:LoadBalancer]" {
		t.Errorf("the attributes are %+v", a)
	}
	var h ipamv3.IPAMHandle
	if u := get(ipamv3.IPAMHandles, lower(webHandle), &h); h.Spec.HandleID != webHandle || fmt.Sprint(h.Spec.Block) != "map[192.0.2.0/30:1 2001:db8::/126:1]" || len(u.GetOwnerReferences()) != 2 {
		t.Errorf("the handle is %+v", u.Object)
	}
	four.Spec.Allocations = []weirv1.Allocation{web}
	if got, want := show(four, six), "update 192-0-2-0-30, delete "+lower(dnsHandle); got != want {
		t.Errorf("an address is free again: %s, want %s", got, want)
	}
	if got, want := show(six), fmt.Sprintf("update %s, delete 192-0-2-0-30, delete load-balancer-192-0-2-0-30", lower(webHandle)); got != want {
		t.Errorf("a block is gone: %s, want %s", got, want)
	}
	var many []weirv1.Allocation
	for i := range 150 {
		many = append(many, weirv1.Allocation{Address: fmt.Sprintf("198.51.100.%d", i), Service: fmt.Sprintf("a/s%d", i), UID: fmt.Sprint(i)})
	}
	big := balancerBlock("198.51.100.0/24", many...)
	for i, want := range []int{maxBalancerWrites, 52, 0} {
		did := show(six, big)
		if n := strings.Count(did, "create"); n != want || strings.Contains(did, "update") {
			t.Errorf("call %d: %d writes, want %d", i, n, want)
		}
	}
	if got := show(); strings.Count(got, "delete") != maxBalancerWrites {
		t.Errorf("everything is gone: %s", got)
	}
}
