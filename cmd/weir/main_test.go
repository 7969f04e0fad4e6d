// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/deploy"
)

func TestSplitServer(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1:6443": "192.0.2.1 6443", "https://192.0.2.1:6443": "192.0.2.1 6443", "https://api.example/": "api.example 6443",
		"api.example": "api.example 6443", "[fd00::1]:443": "fd00::1 443", "fd00::1": "fd00::1 6443",
	} {
		host, port, err := splitServer(in)
		if got := host + " " + port; err != nil || got != want {
			t.Errorf("%s: %q %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{":6443", "http://a:1/x", "a b", "https://"} {
		if host, port, err := splitServer(in); err == nil {
			t.Errorf("%s was taken as %s %s", in, host, port)
		}
	}
}

// What is not a good file changes nothing: it is refused before anything is sent, even without a
// cluster.
func TestFilesAreReadFirst(t *testing.T) {
	for in, want := range map[string]string{
		"": "no object",
		"kind: Pod\napiVersion: v1\nmetadata: {name: a}\n":                                              "use kubectl",
		"kind: IPPool\napiVersion: projectcalico.org/v3\n":                                              "metadata.name",
		"kind: IPPool\napiVersion: projectcalico.org/v3\nmetadata: {name: a}\n---\n{":                   "document 2",
		"kind: IPPool\napiVersion: crd.projectcalico.org/v1\nmetadata: {name: a}\nspec: {cidr: 10/8}\n": "projectcalico.org/v3",
	} {
		_, err := weir(t, "/nonexistent", in, "apply", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
	if _, err := weir(t, "/nonexistent", "", "patch", "ippool", "x", "--patch", "{"); err == nil || !strings.Contains(err.Error(), "--patch") {
		t.Errorf("%v", err)
	}
	if _, err := weir(t, "/nonexistent", "", "get", "ippools"); err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
		t.Errorf("%v", err)
	}
}

func TestDryRunNeedsNoCluster(t *testing.T) {
	out, err := weir(t, "/nonexistent", "", "install", "--dry-run", "--api-server", "192.0.2.10:6443", "--pod-cidr", "10.1.0.0/16")
	if err != nil || !strings.Contains(out, `kubernetes_service_host: "192.0.2.10"`) || !strings.Contains(out, `pod_cidr: "10.1.0.0/16"`) {
		t.Errorf("%v", err)
	}
	if out, err := weir(t, "/nonexistent", "", "install", "--dry-run", "--flows", "--flows-age", "6h", "--flows-claim", "records"); err != nil || !strings.Contains(out, "/weir-flows, --age=6h, --bytes=4Gi, --coarse-after=12h]") || !strings.Contains(out, "claimName: records") {
		t.Errorf("with a store of flow records: %v", err)
	}
	if _, err := weir(t, "/nonexistent", "", "install", "--dry-run", "--pod-cidr", "10.1.0.1/16"); err == nil {
		t.Error("a pod CIDR with host bits was taken")
	}
}

func TestInstallProgram(t *testing.T) {
	dir := t.TempDir()
	from := filepath.Join(dir, "weir-cni")
	to := filepath.Join(dir, "bin")
	if err := os.WriteFile(from, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := installProgram(from, to); err == nil {
		t.Error("installed into a folder that does not exist")
	}
	if err := os.Mkdir(to, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(to, "weir-cni"), []byte("a longer old one"), 0o755); err != nil {
		t.Fatal(err)
	}
	target, err := installProgram(from, to)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(target)
	info, err2 := os.Stat(target)
	if err != nil || err2 != nil || string(got) != "new" || info.Mode().Perm() != 0o755 {
		t.Errorf("%q %v %v %v", got, info.Mode(), err, err2)
	}
	if entries, _ := os.ReadDir(to); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestReportIsHealthyOnlyWhenAllIs(t *testing.T) {
	good := nodeReport{name: "n1", state: "ready", ready: true, heartbeat: time.Second}
	for what, c := range map[string]struct {
		r    report
		want bool
	}{
		"good":        {report{nodes: []nodeReport{good}}, true},
		"unsupported": {report{nodes: []nodeReport{good}, unsupported: []string{"x"}}, true},
		"node":        {report{nodes: []nodeReport{good, {name: "n2", state: "silent"}}}, false},
		"fault":       {report{nodes: []nodeReport{good}, faults: []string{"x"}}, false},
		"problem":     {report{nodes: []nodeReport{good}, problems: []string{"evil\n\x1b[2Jline"}}, false},
	} {
		var out bytes.Buffer
		if err := c.r.print(&out); err != nil || c.r.healthy() != c.want {
			t.Errorf("%s: healthy %v, %v", what, c.r.healthy(), err)
		}
		if strings.Contains(out.String(), "\x1b") {
			t.Errorf("%s: an object's text reaches the terminal as it is", what)
		}
	}
}

// The commands that the documentation names exist.
func TestDocumentedFlagsExist(t *testing.T) {
	root := newRoot()
	for _, words := range [][]string{{"install"}, {"uninstall"}, {"status"}, {"ipam", "show"}, {"ipam", "check"}, {"ipam", "release"},
		{"get"}, {"apply"}, {"create"}, {"replace"}, {"delete"}, {"patch"}, {"label"}, {"version"}, {"lab"}, {"node", "install-cni"},
		{"bench", "run"}, {"bench", "rows"}, {"bench", "clean"}, {"bench", "compare"}, {"bench", "report"}} {
		if cmd, _, err := root.Find(words); err != nil || cmd.Name() != words[len(words)-1] {
			t.Errorf("weir %v: %v", words, err)
		}
	}
	if deploy.Defaults().Validate() != nil {
		t.Error("the defaults are not valid")
	}
}
