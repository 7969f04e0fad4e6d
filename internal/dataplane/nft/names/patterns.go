// SPDX-License-Identifier: Apache-2.0

package names

import (
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// patterns finds those that a name matches, by what the name ends with: it takes as many look-ups
// as the name has labels, however many patterns there are.
type patterns struct {
	exact map[string]nodestate.NameID
	tails map[string][]pattern // by what is behind the wildcard
}

type pattern struct {
	text string
	id   nodestate.NameID
}

func newPatterns() *patterns {
	return &patterns{exact: map[string]nodestate.NameID{}, tails: map[string][]pattern{}}
}

func (p *patterns) add(text string, id nodestate.NameID) {
	_, tail, wild := model.SplitDomain(text)
	if !wild {
		p.exact[text] = id
		return
	}
	if one := (pattern{text, id}); !slices.Contains(p.tails[tail], one) {
		p.tails[tail] = append(p.tails[tail], one)
	}
}

// addAll adds patterns, by their texts, but for those without a number.
func (p *patterns) addAll(names []nodestate.NameID, texts map[nodestate.NameID]string, numbers map[nodestate.NameID]uint32) {
	for _, name := range names {
		if _, has := numbers[name]; has {
			p.add(texts[name], name)
		}
	}
}

// podPatterns are those of a pod's policy, and those that it would have if staged policies were in
// force.
type podPatterns struct{ inForce, staged *patterns }

// matching returns the patterns that one of the names matches; staged are those that the policy in
// force does not have.
func (p *podPatterns) matching(names []string) (inForce, staged []nodestate.NameID) {
	inForce = p.inForce.matching(names)
	staged = slices.DeleteFunc(p.staged.matching(names), func(id nodestate.NameID) bool { return slices.Contains(inForce, id) })
	return inForce, staged
}

// matching returns the patterns that one of the names matches.
func (p *patterns) matching(names []string) (out []nodestate.NameID) {
	add := func(id nodestate.NameID) {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	for _, name := range names {
		if id, ok := p.exact[name]; ok {
			add(id)
		}
		for tail := "." + name; ; {
			for _, one := range p.tails[tail] {
				if model.DomainMatches(one.text, name) {
					add(one.id)
				}
			}
			if tail == "" {
				break
			}
			if next := strings.IndexByte(tail[1:], '.'); next >= 0 {
				tail = tail[1+next:]
			} else {
				tail = ""
			}
		}
	}
	return out
}
