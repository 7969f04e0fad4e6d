// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weir-net/weir/lab/internal/network"
	"github.com/weir-net/weir/lab/internal/nodeinit"
	"github.com/weir-net/weir/lab/internal/nodespec"
	"github.com/weir-net/weir/lab/internal/plan"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Status writes one screen about the lab and says whether all of it is healthy.
func (s *State) Status(ctx context.Context, w io.Writer) (healthy bool, err error) {
	l, err := s.plan()
	if err != nil {
		return false, err
	}
	healthy = s.Started
	state := "up"
	switch {
	case s.Started:
	case s.Starter.Alive():
		state = "starting"
	default:
		state = "incomplete: its start was cut short, remove it with: weir-lab down --name " + s.Name
	}
	fmt.Fprintf(w, "lab %s: %s, proxy %s, IP family %s, created %s\n", s.Name, state, s.Proxy, l.Family, s.Created.Format(time.RFC3339))
	fmt.Fprintf(w, "API server %s, kubeconfig %s\n\n", l.APIServer(), KubeconfigPath(s.Name))

	client, connectErr := connect(s.Name)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MACHINE\tADDRESS\tREADY\tPROCESSES")
	for _, m := range l.Machines {
		ready, procs, ok := "-", "-", true
		if m.IsNode() {
			ready, ok = "unknown", false
			if connectErr == nil {
				ready, ok = readiness(ctx, client, m.Name)
			}
			var running bool
			procs, running = s.daemons(m.Name)
			ok = ok && running
		}
		if _, err := os.Stat(network.Path(plan.Scoped(s.Name, m.Name))); err != nil {
			procs, ok = "no network namespace", false
		}
		healthy = healthy && ok
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", m.Name, strings.Trim(fmt.Sprint(m.Addrs()), "[]"), ready, procs)
	}
	if err := t.Flush(); err != nil {
		return false, fmt.Errorf("write the status: %w", err)
	}
	if connectErr != nil {
		fmt.Fprintln(w, connectErr)
	}
	return healthy, nil
}

func readiness(ctx context.Context, c *kubernetes.Clientset, node string) (string, bool) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	n, err := c.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return "unknown", false
	}
	if ok, _ := nodeReady(n); !ok {
		return "no", false
	}
	return "yes", true
}

// daemons says how a node's daemons are, the unhealthy ones first.
func (s *State) daemons(node string) (string, bool) {
	p, err := s.initProcess(node)
	if err != nil {
		return "not started", false
	}
	if !p.Alive() {
		return "ended", false
	}
	raw, err := os.ReadFile(filepath.Join(s.Data, node, nodespec.Status))
	if err != nil {
		return "starting", false
	}
	var all []nodeinit.DaemonStatus
	if err := json.Unmarshal(raw, &all); err != nil {
		return "unreadable status", false
	}
	var good, bad []string
	for _, d := range all {
		switch {
		case !d.Running && d.Last != "":
			bad = append(bad, fmt.Sprintf("%s DOWN (%s)", d.Name, d.Last))
		case !d.Running:
			bad = append(bad, d.Name+" waiting")
		case d.Restarts > 0:
			good = append(good, fmt.Sprintf("%s (restarted %d times)", d.Name, d.Restarts))
		default:
			good = append(good, d.Name)
		}
	}
	return strings.Join(append(bad, good...), ", "), len(bad) == 0
}

// complaints says what is wrong with the nodes' daemons, if anything.
func (s *State) complaints() string {
	l, err := s.plan()
	if err != nil {
		return ""
	}
	var out []string
	for _, m := range l.Nodes() {
		if how, ok := s.daemons(m.Name); !ok {
			out = append(out, m.Name+": "+how)
		}
	}
	return strings.Join(out, "\n")
}

// List names the labs of this machine.
func List() ([]string, error) {
	entries, err := os.ReadDir(StateDir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	var out []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			out = append(out, e.Name())
		}
	}
	return out, nil
}
