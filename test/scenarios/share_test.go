// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/weir-net/weir/test/scenarios/scenario"
)

// shareScript has one pod that opens connections until the table, which is as small as may be, is
// nearly full: 1,024 entries, of which 960 may be used by anybody. It is too long to be a file.
func shareScript(t *testing.T) fs.FS {
	t.Helper()
	cluster, err := fs.ReadFile(dir, "clusters/flat.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var run strings.Builder
	open := func(pod, addr string, port int) {
		fmt.Fprintf(&run, "send pod:default/%s tcp %s:%d > 10.244.2.2:80 S\narrives pod:default/c\nreply S.\narrives pod:default/%s\nagain .\narrives pod:default/c\n", pod, addr, port, pod)
	}
	for i := range 481 {
		open("a", "10.244.1.2", 1000+i)
	}
	run.WriteString("send pod:default/a tcp 10.244.1.2:2000 > 10.244.2.2:80 S\ndrop w1 from_workload SHARE\n")
	run.WriteString("send pod:default/a udp 10.244.1.2:2000 > 10.244.2.2:53\ndrop w1 from_workload SHARE\n")
	// what is open goes on, others may still begin, and the pod is reached
	run.WriteString("send pod:default/a tcp 10.244.1.2:1000 > 10.244.2.2:80 .\narrives pod:default/c\n")
	open("b", "10.244.1.3", 1000)
	run.WriteString("send pod:default/c tcp 10.244.2.2:1000 > 10.244.1.2:80 S\narrives pod:default/a\nreply S.\narrives pod:default/c\n")
	// above an eighth b is held, too
	for i := range 64 {
		open("b", "10.244.1.3", 1001+i)
	}
	run.WriteString("send pod:default/b tcp 10.244.1.3:2000 > 10.244.2.2:80 S\ndrop w1 from_workload SHARE\n")
	script := "A pod has its share of the connection table.\n-- objects.yaml --\napiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: default}\nspec: {bpfMapSizeConntrack: 1024}\n-- run --\n" + run.String()
	return fstest.MapFS{"share.txtar": {Data: []byte(script)}, "clusters/flat.yaml": {Data: cluster}}
}

func TestSimShare(t *testing.T) {
	t.Parallel()
	s, err := scenario.Read(shareScript(t), "share.txtar")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Play(scenario.NewSim(1)); err != nil {
		t.Fatal(err)
	}
}

func TestProgramsShare(t *testing.T) {
	r := newRunner(t)
	s, err := scenario.Read(shareScript(t), "share.txtar")
	if err != nil {
		t.Fatal(err)
	}
	if err := timely(t, r, 15*time.Second, func() error { return s.Play(r.New) }); err != nil {
		t.Fatal(err)
	}
}
