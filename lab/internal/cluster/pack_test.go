// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-net/weir/lab/internal/plan"
)

// A cache that was packed is used as it is, for labs that it was packed for and for no others; a
// cache of another kind is not taken for one.
func TestUnpack(t *testing.T) {
	o := Options{Cache: t.TempDir(), Proxy: plan.ProxyWeir}
	if _, _, err := unpack(o); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an ordinary cache: %v", err)
	}
	index := packed{Proxy: plan.ProxyWeir, Programs: map[string]string{"kubelet": "kubernetes-1"}}
	if err := writeJSON(filepath.Join(o.Cache, packedIndex), index); err != nil {
		t.Fatal(err)
	}
	set, seed, err := unpack(o)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := set.Path("kubelet"), filepath.Join(o.Cache, "bin/kubernetes-1/kubelet"); got != want {
		t.Errorf("the kubelet is at %s, want %s", got, want)
	}
	if seed != filepath.Join(o.Cache, "seed") {
		t.Errorf("the seed is %s", seed)
	}
	o.Proxy = plan.ProxyCalico
	if _, _, err := unpack(o); err == nil || !strings.Contains(err.Error(), "calico") {
		t.Errorf("a lab that it was not packed for: %v", err)
	}
}
