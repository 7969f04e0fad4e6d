// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"context"
	"net/netip"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	ipamv3 "github.com/weir-net/weir/api/ipam/v3"
	"github.com/weir-net/weir/internal/ipam"
)

// watch hands over an IPAMBlock of the node whenever somebody writes it. A watch of one name costs
// the API server nothing for others' writes. Where agents may not watch, because that would show
// them other nodes' blocks, it looks now and then.
func (m *Mirror) watch(ctx context.Context, name string) {
	for {
		w, err := m.api.Resource(ipamv3.IPAMBlocks).Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
		if err == nil {
			for e := range w.ResultChan() {
				u, is := e.Object.(*unstructured.Unstructured)
				if !is || u.GetName() != name {
					continue
				}
				if e.Type == "DELETED" {
					u = &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name}}} // gone
				}
				select {
				case m.seen <- u:
				case <-ctx.Done():
					w.Stop()
					return
				}
			}
			w.Stop()
		}
		pause := followAgain
		if apierrors.IsForbidden(err) {
			pause = lookAgain
			if u := m.read(ctx, ipamv3.IPAMBlocks, name); u != nil {
				select {
				case m.seen <- u:
				case <-ctx.Done():
					return
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// note takes over what an IPAMBlock is now. Addresses that this process showed and that it does not
// have any more are to be released. Of what an earlier process showed is known when: a record that
// is older, and not shown, was taken out.
func (m *Mirror) note(u *unstructured.Unstructured) {
	var block netip.Prefix
	for b := range m.follow {
		if clientName(b) == u.GetName() {
			block = b
		}
	}
	if !block.IsValid() || u.GetResourceVersion() != "" && !newer(u.GetResourceVersion(), m.wrote[block]) {
		return // what was shown then is less than what was shown since
	}
	var now ipamv3.IPAMBlock
	if u.GetResourceVersion() == "" {
		m.have[ipamv3.IPAMBlocks][u.GetName()] = nil
		return
	}
	m.have[ipamv3.IPAMBlocks][u.GetName()] = u
	if runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &now) != nil || now.Spec.CIDR != block.String() || now.Spec.Deleted {
		return
	}
	has := allocated(block, &now.Spec)
	shown, mine := m.shown[block]
	if !mine {
		shown = m.shownBefore(block, now.Spec.SequenceNumber)
	}
	for _, r := range m.from.Records() {
		before, was := shown[r.Address]
		if !was || has[r.Address] || before != r {
			continue // it was released or given again meanwhile
		}
		held, err := "it was given less than a minute ago", error(nil)
		if m.now().Sub(r.Time) > settled {
			held, err = m.from.ReleaseUnused(r.Address)
		}
		if err != nil {
			held = err.Error()
		}
		if held == "" {
			m.log.Info("released an address as asked by a change of its IPAMBlock", "address", r.Address.String(), "pod", r.PodName().String())
			continue
		}
		m.log.Warn("an address that a change of its IPAMBlock asks to release stays", "address", r.Address.String(), "reason", held)
		m.mu.Lock()
		if len(m.refused) < 100 {
			m.refused[r.Address] = refusal{held, m.now()}
		}
		m.mu.Unlock()
	}
}

// newer reports whether a version of an object is after another one, which this process wrote (""
// = it wrote none).
func newer(version, than string) bool {
	if than == "" {
		return true
	}
	a, err := strconv.ParseUint(version, 10, 64)
	b, err2 := strconv.ParseUint(than, 10, 64)
	return err == nil && err2 == nil && a > b
}

// shownBefore are the records of a block that a mirror of this time had to show.
func (m *Mirror) shownBefore(block netip.Prefix, written int64) map[netip.Addr]ipam.Record {
	out := map[netip.Addr]ipam.Record{}
	for _, r := range m.from.Records() {
		if block.Contains(r.Address) && r.ContainerID != "" && sequence(r.Time) < written {
			out[r.Address] = r
		}
	}
	return out
}
