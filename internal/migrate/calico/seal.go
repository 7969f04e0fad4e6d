// SPDX-License-Identifier: Apache-2.0

package calico

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The objects in which Calico keeps who has which addresses.
var (
	IPAMBlocks      = schema.GroupVersionResource{Group: Group, Version: "v1", Resource: "ipamblocks"}
	BlockAffinities = schema.GroupVersionResource{Group: Group, Version: "v1", Resource: "blockaffinities"}
	IPAMHandles     = schema.GroupVersionResource{Group: Group, Version: "v1", Resource: "ipamhandles"}
	IPAMConfigs     = schema.GroupVersionResource{Group: Group, Version: "v1", Resource: "ipamconfigs"}
)

// sealedHandle is the handle of addresses that Weir gives.
const sealedHandle = "weir-reserved"

// IsSealed reports whether an allocation is one of Seal's.
func (a Allocation) IsSealed() bool { return a.Handle == sealedHandle }

// blockName is the name of a block's object, which Calico makes of its CIDR.
func blockName(cidr netip.Prefix) string {
	return strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(cidr.String())
}

// SealedBlock is the IPAMBlock of a node that has Weir, of which Calico gives nothing.
func SealedBlock(cidr netip.Prefix, node string) *unstructured.Unstructured {
	size := 1 << (cidr.Addr().BitLen() - cidr.Bits())
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": Group + "/v1", "kind": "IPAMBlock",
		"metadata": map[string]any{"name": blockName(cidr)},
		"spec": map[string]any{"cidr": cidr.String(), "affinity": "host:" + node, "strictAffinity": false, "deleted": false,
			"allocations": make([]any, size), "unallocated": []any{}, "attributes": []any{}}}}
	if err := Seal(u); err != nil {
		panic(err) // of an object that was made here
	}
	return u
}

// Affinity is the BlockAffinity of a block.
func Affinity(cidr netip.Prefix, node string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": Group + "/v1", "kind": "BlockAffinity",
		"metadata": map[string]any{"name": node + "-" + blockName(cidr)},
		"spec":     map[string]any{"cidr": cidr.String(), "node": node, "state": "confirmed", "deleted": "false"}}}
}

// Seal marks all free addresses of an IPAMBlock as taken, so that Calico gives none of them and
// does not take the block from its node, which has Weir.
func Seal(u *unstructured.Unstructured) error {
	return rewrite(u, func(_ netip.Addr, has *attribute) *attribute {
		if has == nil {
			return &attribute{Handle: sealedHandle}
		}
		return has
	})
}

// Unseal makes the allocations of an IPAMBlock those of a node's pods as they are with Weir, for
// Calico to go on with. What no pod has is free; an address of the node's tunnel stays.
func Unseal(u *unstructured.Unstructured, pods map[netip.Addr]Allocation) error {
	return rewrite(u, func(a netip.Addr, has *attribute) *attribute {
		if p, ok := pods[a]; ok {
			return &attribute{Handle: p.Handle, Secondary: map[string]any{"node": p.Node, "namespace": p.Namespace, "pod": p.Pod}}
		}
		if has != nil && has.Handle != sealedHandle && has.Secondary["pod"] == nil {
			return has
		}
		return nil
	})
}

type attribute struct {
	Handle    string
	Secondary map[string]any
}

// number reads a whole number, as JSON or YAML has it.
func number(v any) (int64, bool) {
	switch n := v.(type) {
	case int64:
		return n, true
	case float64:
		return int64(n), true
	}
	return 0, false
}

// rewrite gives each address of a block the attribute that to says, nil = it is free.
func rewrite(u *unstructured.Unstructured, to func(netip.Addr, *attribute) *attribute) error {
	if _, _, err := ReadBlock(u); err != nil {
		return err
	}
	spec, _, err := unstructured.NestedMap(u.Object, "spec")
	if err != nil {
		return fmt.Errorf("read IPAMBlock %s: %w", u.GetName(), err)
	}
	allocations, _ := spec["allocations"].([]any)
	before, _ := spec["attributes"].([]any)
	attributes, unallocated, index := []any{}, []any{}, map[string]int64{}
	sequence, _ := number(spec["sequenceNumber"])
	numbers, _ := spec["sequenceNumberForAllocation"].(map[string]any)
	after := map[string]any{}
	cidr, err := netip.ParsePrefix(fmt.Sprint(spec["cidr"]))
	if err != nil {
		return fmt.Errorf("read IPAMBlock %s: %w", u.GetName(), err)
	}
	address := cidr.Addr()
	for i := range allocations {
		var has *attribute
		if n, ok := number(allocations[i]); ok {
			m, _ := before[n].(map[string]any)
			has = &attribute{}
			has.Handle, _ = m["handle_id"].(string)
			has.Secondary, _ = m["secondary"].(map[string]any)
		}
		want := to(address, has)
		address = address.Next()
		if want == nil {
			allocations[i] = nil
			unallocated = append(unallocated, int64(i))
			continue
		}
		m := map[string]any{"handle_id": want.Handle}
		if want.Secondary != nil {
			m["secondary"] = want.Secondary
		}
		key := fmt.Sprint(want.Handle, want.Secondary)
		n, ok := index[key]
		if !ok {
			n = int64(len(attributes))
			index[key] = n
			attributes = append(attributes, m)
		}
		allocations[i] = n
		ordinal := strconv.Itoa(i)
		if n, ok := number(numbers[ordinal]); ok {
			after[ordinal] = n
		} else {
			after[ordinal] = sequence
		}
	}
	spec["allocations"], spec["unallocated"], spec["attributes"] = allocations, unallocated, attributes
	spec["sequenceNumber"], spec["sequenceNumberForAllocation"] = sequence+1, after
	u.Object["spec"] = spec
	return nil
}
