// SPDX-License-Identifier: Apache-2.0

package parse

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
)

// Floating reads the annotation by which a pod asks for floating addresses, a list in JSON: sorted,
// each once. What cannot be read is left out and reported.
func (f *Finding) Floating(annotations map[string]string) []netip.Addr {
	const name = model.AnnotationFloating
	text, has := annotations[name]
	if !has {
		return nil
	}
	var list []string
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		f.Add(annotationName(name), text, `is not a JSON list of addresses such as ["203.0.113.7"]`, "the pod has no floating address")
		return nil
	}
	var out []netip.Addr
	for _, s := range list {
		a, err := netip.ParseAddr(s)
		if a = a.Unmap(); err != nil || a.Zone() != "" || !a.IsGlobalUnicast() {
			f.Add(annotationName(name), s, "is not the address of a host", "the pod does not have it")
			continue
		}
		out = append(out, a)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	if out = slices.Compact(out); len(out) > model.MostFloating {
		f.Add(annotationName(name), fmt.Sprint(len(out)), fmt.Sprintf("are more than %d addresses", model.MostFloating), "shorten the list: without that none counts")
		return nil
	}
	return out
}
