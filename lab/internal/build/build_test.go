// SPDX-License-Identifier: Apache-2.0

package build

import (
	"path"
	"slices"
	"strings"
	"testing"
)

func TestOnKubernetes(t *testing.T) {
	in := `module k8s.io/kubernetes

go 1.24.0

require (
	golang.org/x/net v0.38.0
	k8s.io/api v0.0.0
	k8s.io/klog/v2 v2.130.1
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/cluster-bootstrap => ./staging/src/k8s.io/cluster-bootstrap
)
`
	g := Group{Name: "coredns", Module: "github.com/coredns/coredns", Version: "v1.12.4", OnKubernetes: true}
	out := string(onKubernetes([]byte(in), g, []library{{"golang.org/x/net", "v0.48.0"}, {"github.com/vishvananda/netlink", "v1.3.1"}}))
	for _, want := range []string{
		"module weir.local/lab/coredns\n",
		"\tk8s.io/api v0.34.4\n",
		"\tk8s.io/klog/v2 v2.130.1\n",
		"\tk8s.io/api v0.0.0 => k8s.io/api v0.34.4\n",
		"\tk8s.io/cluster-bootstrap v0.0.0 => k8s.io/cluster-bootstrap v0.34.4\n",
		"require golang.org/x/net v0.48.0\n",
		"require github.com/coredns/coredns v1.12.4\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	for _, no := range []string{"staging", "netlink"} {
		if strings.Contains(out, no) {
			t.Errorf("%s in\n%s", no, out)
		}
	}
}

// Go puts programs that are built together under the last element of their packages' paths.
func TestProgramsOfOneBuildHaveTheirPackagesNames(t *testing.T) {
	for _, g := range Groups() {
		for _, p := range g.Programs {
			if len(g.Programs) > 1 && !p.Test && path.Base(p.Package) != p.Name {
				t.Errorf("%s comes out of %s", p.Name, p.Package)
			}
		}
	}
}

func TestNamed(t *testing.T) {
	selected, err := Named([]string{"kube-apiserver", "etcd"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, g := range Groups() {
		for _, p := range g.Programs {
			if selected(p) {
				got = append(got, p.Name)
			}
		}
	}
	if want := []string{"kube-apiserver", "etcd"}; !slices.Equal(got, want) {
		t.Errorf("selected %v, want %v", got, want)
	}
	if _, err := Named([]string{"etcd", "etdc"}); err == nil || !strings.Contains(err.Error(), `"etdc"`) {
		t.Errorf("an unknown program: %v", err)
	}
}

func TestFolderFollowsItsInputs(t *testing.T) {
	g := Groups()[0]
	other := g
	other.Version = "v1.34.5"
	with := []library{{"golang.org/x/net", "v0.48.0"}}
	seen := map[string]bool{}
	for _, f := range []string{g.folder("go1.26.8", nil), g.folder("go1.26.9", nil), other.folder("go1.26.8", nil), g.folder("go1.26.8", with)} {
		if seen[f] {
			t.Errorf("%s represents two different inputs", f)
		}
		seen[f] = true
	}
	if g.folder("go1.26.8", with) != g.folder("go1.26.8", with) {
		t.Error("the folder is not a function of its inputs")
	}
}

func TestKubernetesIsStamped(t *testing.T) {
	f := Groups()[0].ldflags()
	for _, want := range []string{"k8s.io/component-base/version.gitMajor=1 ", "k8s.io/client-go/pkg/version.gitMinor=34 ", "gitVersion=v1.34.4"} {
		if !strings.Contains(f, want) {
			t.Errorf("no %q in %s", want, f)
		}
	}
}

func TestProgramNamesAreUnique(t *testing.T) {
	seen := map[string]string{}
	for _, g := range Groups() {
		for _, p := range g.Programs {
			if other, ok := seen[p.Name]; ok {
				t.Errorf("%s is in %s and %s", p.Name, other, g.Name)
			}
			seen[p.Name] = g.Name
		}
	}
}

// TestOnItself: a module's replacements by folders, which its archive lacks, become published
// modules, and the others stay.
func TestOnItself(t *testing.T) {
	in := `module github.com/projectcalico/calico

require github.com/projectcalico/api v0.0.0-00010101000000-000000000000

replace (
	github.com/projectcalico/api => ./api
	k8s.io/api => k8s.io/api v0.29.15
)
`
	g := calico()
	out := string(onItself([]byte(in), g))
	for _, want := range []string{
		"module weir.local/lab/calico\n",
		"\tgithub.com/projectcalico/api => github.com/projectcalico/api v0.0.0-20240708202104-e3f70b269c2c\n",
		"\tk8s.io/api => k8s.io/api v0.29.15\n",
		"\nrequire github.com/projectcalico/calico " + g.Version + "\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
}

// TestCalicoIsBuiltOnRequest: it costs minutes, and most labs do without.
func TestCalicoIsBuiltOnRequest(t *testing.T) {
	for _, p := range calico().Programs {
		if ForLab(p) || ForTests(p) || ForOther("calico")(p) == p.OnRequest || ForOther("flannel")(p) {
			t.Errorf("%+v", p)
		}
	}
}
