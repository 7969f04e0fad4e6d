// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"path/filepath"
	"strings"
	"testing"

	benchresult "github.com/weir-net/weir/internal/bench/result"
)

// TestBench runs `weir bench` as a user does, with short rows: what it measures is there, and
// nothing of it is left. How fast anything was is not checked.
func TestBench(t *testing.T) {
	all.inParallel(t)
	file := filepath.Join(t.TempDir(), "bench.json")
	rows := "idle,host2host/tcp,pod2pod/tcp,pod2svc/tcp,pod2svc/udp,pod2svc/udp-rr,pod2pod/crr,pod2pod-local/tcp-rr,host2nodeport/crr,outside2nodeport/http,pod2svc/cps,control"
	out, code := all.weir(t, "bench", "run", "--client-node", "worker1", "--server-node", "worker2", "--duration", "1s", "--warm-up", "100ms", "--rounds", "1",
		"--requests", "100", "--changes", "2", "--rows", rows, "--output", file)
	if code != 0 {
		t.Fatalf("code %d: %s", code, out)
	}
	f, err := benchresult.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range f.Rows {
		r := &f.Rows[i]
		if len(r.Rounds) != 1 || r.Rounds[0].Error != "" || r.Values[r.Main()].Median <= 0 && r.ID != "idle" {
			t.Errorf("%s: %+v", r.ID, r.Rounds)
		}
	}
	if want := len(strings.Split(rows, ",")) - 1 + 3; len(f.Rows) != want {
		t.Errorf("%d rows, want %d", len(f.Rows), want)
	}
	if !strings.HasPrefix(f.Cluster.DataPlane, "Weir") || !strings.HasSuffix(f.Cluster.DataPlane, "no kube-proxy") || !f.Cluster.OneMachine || f.Data.MTU == "" || f.Data.MTU == "0" {
		t.Errorf("the cluster is %q, on one machine: %v, pod MTU %s", f.Cluster.DataPlane, f.Cluster.OneMachine, f.Data.MTU)
	}
	if d := f.Row("control/endpoint").Rounds; len(d) == 1 && len(d[0].Daemons["worker1"]) == 0 {
		t.Errorf("no daemon of the network was seen: %+v", d[0].Daemons)
	}
	if left := all.mustKubectl(t, "", "get", "namespaces", "-l", "weir.dev/bench", "-o", "name"); strings.TrimSpace(left) != "" {
		t.Errorf("left behind: %s", left)
	}
	if out, code := all.weir(t, "bench", "report", file, "--html", filepath.Join(filepath.Dir(file), "a.html")); code != 0 {
		t.Errorf("report: %s", out)
	}
}
