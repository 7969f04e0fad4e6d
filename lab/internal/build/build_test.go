// SPDX-License-Identifier: Apache-2.0

package build

import (
	"strings"
	"testing"
)

func TestPublishedModule(t *testing.T) {
	in := `module k8s.io/kubernetes

go 1.24.0

require k8s.io/api v0.0.0

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/cluster-bootstrap => ./staging/src/k8s.io/cluster-bootstrap
)
`
	out := string(publishedModule([]byte(in), "v1.34.4"))
	for _, want := range []string{
		"module weir.local/lab/kubernetes\n",
		"k8s.io/api => k8s.io/api v0.34.4\n",
		"k8s.io/cluster-bootstrap => k8s.io/cluster-bootstrap v0.34.4\n",
		"require k8s.io/kubernetes v1.34.4\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "staging") {
		t.Errorf("still points into the source tree:\n%s", out)
	}
}

func TestFolderFollowsItsInputs(t *testing.T) {
	g := Groups()[0]
	other := g
	other.Version = "v1.34.5"
	seen := map[string]bool{}
	for _, f := range []string{g.folder("go1.26.8"), g.folder("go1.26.9"), other.folder("go1.26.8")} {
		if seen[f] {
			t.Errorf("%s represents two different inputs", f)
		}
		seen[f] = true
	}
	if g.folder("go1.26.8") != g.folder("go1.26.8") {
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
