// SPDX-License-Identifier: Apache-2.0

package dryrun

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/names"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/model"
)

// Asked is a question to a set in the kernel, with the answer, in the words of nft.
type Asked struct {
	Set, Key string
	Found    bool
	Value    string // of a map
}

// maxDifferences bounds how many differences are reported.
const maxDifferences = 10

// verify compares what is in the kernel with what was to be written: all chains, and each element
// that was asked for.
func (r *dryRun) verify() {
	t, w := r.node.Table, r.walk
	p := &r.out.Proof
	p.Family, p.Generation, p.Rules, p.Met = string(r.family.NFT()), w.Table.Generation, w.Table.Rules, w.Rules
	p.Chains = w.Chains
	p.Others = slices.DeleteFunc(slices.Clone(w.Table.Others), func(name string) bool { return name == names.TableName })
	differs := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); len(p.Differs) < maxDifferences && !slices.Contains(p.Differs, text) {
			p.Differs = append(p.Differs, text)
		}
	}
	have := w.Table.Comments()
	written := t.InKernel()
	for name, want := range written {
		if !slices.Equal(have[name], want) {
			differs("chain %s has %d rules that are not those that were written", name, len(have[name]))
		}
	}
	for name := range have {
		if _, ok := written[name]; !ok {
			differs("chain %s is nobody's", name)
		}
	}
	for _, l := range w.Lookups {
		set, named := t.Definition(l.Set)
		if !named || set.TypeOf {
			continue // of one rule, which is compared; or of what packets add
		}
		a := Asked{Set: l.Set, Key: wordsOf(set.Key, l.Key), Found: l.Found}
		if set.Value != "" && l.Found {
			if a.Value = l.Leads; a.Value == "" {
				a.Value = wordsOf(set.Value, l.Value)
			}
		}
		if slices.Contains(p.Lookups, a) {
			continue
		}
		p.Lookups = append(p.Lookups, a)
		if set.Learned {
			continue
		}
		if value, wanted := t.Wanted(l.Set, a.Key); wanted != a.Found || wanted && value != a.Value {
			differs("%s in set %s is %s, and should be %s", a.Key, a.Set, answerWords(a.Found, a.Value), answerWords(wanted, value))
		}
	}
}

func answerWords(found bool, value string) string {
	switch {
	case !found:
		return "absent"
	case value == "":
		return "there"
	}
	return value
}

// wordsOf writes bytes of the kernel in the words of nft; types are those of a set, in order.
func wordsOf(types string, b []byte) string {
	var out []string
	for _, one := range strings.Split(types, " . ") {
		text, n := wordOf(one, b)
		out = append(out, text)
		if n = (n + 3) / 4 * 4; n > len(b) {
			n = len(b)
		}
		b = b[n:]
	}
	return strings.Join(out, " . ")
}

// wordOf writes a value of one type, which takes n bytes.
func wordOf(kind string, b []byte) (text string, n int) {
	sizes := map[string]int{"ipv4_addr": 4, "ipv6_addr": 16, "inet_service": 2, "inet_proto": 1, "ifname": 16, "mark": 4, "classid": 4, "ether_addr": 6}
	n, ok := sizes[kind]
	if !ok || n > len(b) {
		return fmt.Sprintf("%x", b), len(b)
	}
	b = b[:n]
	switch kind {
	case "ipv4_addr", "ipv6_addr":
		a, _ := netip.AddrFromSlice(b)
		return a.String(), n
	case "inet_service":
		return fmt.Sprint(binary.BigEndian.Uint16(b)), n
	case "inet_proto":
		return model.Protocol(b[0]).String(), n
	case "ifname":
		return strings.TrimRight(string(b), "\x00"), n
	case "ether_addr":
		return table.MACText([6]byte(b)), n
	}
	v := binary.NativeEndian.Uint32(b)
	if kind == "classid" {
		return expr.PriorityText(uint16(v>>16), uint16(v)), n
	}
	return fmt.Sprint(v), n
}
