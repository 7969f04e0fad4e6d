// SPDX-License-Identifier: Apache-2.0

package parse

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
)

// Sources reads an annotation that lists prefixes of source addresses, as CIDRs or addresses in
// JSON: sorted, each once. What cannot be read is left out and reported, with what that means.
func (f *Finding) Sources(annotations map[string]string, name, without string) []netip.Prefix {
	text, has := annotations[name]
	if !has {
		return nil
	}
	var list []string
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		f.Add(annotationName(name), text, `is not a JSON list of CIDRs such as ["203.0.113.0/24"]`, without)
		return nil
	}
	var out []netip.Prefix
	for _, s := range list {
		p, err := Prefix(s, false)
		if err != nil {
			f.Add(annotationName(name), s, err.Error(), without)
			continue
		}
		out = append(out, p)
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	if out = slices.Compact(out); len(out) > model.MostSources {
		f.Add(annotationName(name), fmt.Sprint(len(out)), fmt.Sprintf("are more than %d prefixes", model.MostSources), "shorten the list: without that none counts")
		return nil
	}
	return out
}
