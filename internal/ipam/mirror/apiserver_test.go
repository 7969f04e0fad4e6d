// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	ipamv3 "github.com/weir-net/weir/api/ipam/v3"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/ipam"
)

// locked are allocations for several goroutines.
type locked struct {
	mu sync.Mutex
	allocations
}

func (l *locked) OwnBlocks() []netip.Prefix { return l.blocks }

func (l *locked) Records() []ipam.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.allocations.Records()
}

func (l *locked) ReleaseUnused(a netip.Addr) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.allocations.ReleaseUnused(a)
}

// With the rights of an agent, and under the policies of admission, a real API server takes what is
// shown, and what a user takes out of it is released.
func TestWithAPIServer(t *testing.T) {
	if !apitest.Isolated(t) {
		return
	}
	s := apitest.Start(t)
	objects, err := deploy.Objects(deploy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		if u.GetKind() == "CustomResourceDefinition" && strings.Contains(u.GetName(), "ipam") || u.GetName() == "blockaffinities.projectcalico.org" ||
			u.GetName() == "weir-node" && strings.HasPrefix(u.GetKind(), "ClusterRole") || u.GetName() == "weir-ipam-mirrors" || u.GetName() == "weir-node-own-objects" {
			s.Create(u)
		}
	}
	agent := s.As("system:serviceaccount:kube-system:weir-node", "n1")
	if _, err := s.Clients.Kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	from := &locked{allocations: allocations{blocks: []netip.Prefix{block4, block6}, held: map[netip.Addr]string{}}}
	for _, b := range from.blocks {
		apitest.Eventually(t, time.Minute, "the block of weir.dev", func() error {
			_, err := agent.Dynamic.Resource(weirv1.IPAMBlocks).Create(t.Context(), apitest.Object("weir.dev/v1", "IPAMBlock", weirv1.BlockName(b), map[string]any{"cidr": b.String(), "node": "n1"}), metav1.CreateOptions{})
			return err
		})
	}
	for i, a := range []string{"10.244.3.1", "10.244.3.2", "fd00:10:244::1"} {
		from.records = append(from.records, ipam.Record{Address: netip.MustParseAddr(a), ContainerID: fmt.Sprint("c", i), Namespace: "shop", Pod: fmt.Sprint("p", i), Time: time.Now().Add(-time.Hour)})
	}
	from.held[netip.MustParseAddr("10.244.3.2")] = "pod shop/p1 has it by its status"
	m := New(agent.Dynamic, "n1", from, slog.New(slog.DiscardHandler))
	m.pace = 50 * time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	blocks := s.Clients.Dynamic.Resource(ipamv3.IPAMBlocks)
	shown := func(b netip.Prefix, want ...int) func() error {
		return func() error {
			u, err := blocks.Get(t.Context(), clientName(b), metav1.GetOptions{})
			if err != nil {
				return err
			}
			list, _, err := unstructured.NestedSlice(u.Object, "spec", "allocations")
			if err != nil {
				return err
			}
			var got []int
			for i, a := range list {
				if a != nil {
					got = append(got, i)
				}
			}
			if !slices.Equal(got, want) || len(list) != 16 || len(u.GetOwnerReferences()) != 1 {
				return fmt.Errorf("%s has %v allocated, of %d, and owners %v", b, got, len(list), u.GetOwnerReferences())
			}
			return nil
		}
	}
	apitest.Eventually(t, time.Minute, "IPv4", shown(block4, 1, 2))
	apitest.Eventually(t, time.Minute, "IPv6", shown(block6, 1))
	if _, err := s.Clients.Dynamic.Resource(ipamv3.IPAMHandles).Get(t.Context(), "weir-node.n1", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := s.Clients.Dynamic.Resource(ipamv3.BlockAffinities).Get(t.Context(), "n1-10-244-3-0-28", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	// As a client does that releases both.
	apitest.Eventually(t, time.Minute, "the request", func() error {
		u, err := blocks.Get(t.Context(), clientName(block4), metav1.GetOptions{})
		if err != nil {
			return err
		}
		spec := u.Object["spec"].(map[string]any)
		list := spec["allocations"].([]any)
		list[1], list[2] = nil, nil
		spec["unallocated"] = append(spec["unallocated"].([]any), int64(1), int64(2))
		spec["attributes"] = []any{}
		u.SetOwnerReferences(nil)
		_, err = blocks.Update(t.Context(), u, metav1.UpdateOptions{})
		return err
	})
	apitest.Eventually(t, time.Minute, "what stays", shown(block4, 2))
	apitest.Eventually(t, time.Minute, "the problem", func() error {
		if p := m.Problems(); len(p) != 1 || p[0].Value != "10.244.3.2" {
			return fmt.Errorf("problems %v", p)
		}
		from.mu.Lock()
		defer from.mu.Unlock()
		if fmt.Sprint(from.released) != "[10.244.3.1]" {
			return errors.New("released " + fmt.Sprint(from.released))
		}
		return nil
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
