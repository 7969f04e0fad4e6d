// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/api/client/clientset"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/agentapi/wire"
	srcdst "github.com/weir-net/weir/internal/controller/srcdst/status"
	"github.com/weir-net/weir/internal/flows/ask"
	flowscommand "github.com/weir-net/weir/internal/flows/command"
	"github.com/weir-net/weir/internal/relay/live"
	"github.com/weir-net/weir/internal/stored"
	"github.com/weir-net/weir/internal/terminal"
	"github.com/weir-net/weir/internal/watch/parse"
)

// clockSkew is by how much the clocks of a node and of this machine may differ.
const clockSkew = 30 * time.Second

// staleAfter returns the age of a heartbeat from which on an agent of so many counts as silent.
func staleAfter(nodes int) time.Duration { return max(2*time.Minute, 3*weirv1.HeartbeatEvery(nodes)) }

func newStatus(o *options) *cobra.Command {
	var node string
	var live, local bool
	var runDir string
	cmd := &cobra.Command{Use: "status", Short: "Show what is healthy and what is not, by node; exit code 1 if something is not", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if local {
				if live || node != "" {
					return errors.New("--local asks the agent of this machine alone: leave out --live and --node")
				}
				return localStatus(cmd.Context(), runDir, time.Now, cmd.OutOrStdout())
			}
			c, err := o.connect()
			if err != nil {
				return err
			}
			asker, err := o.asker(c)
			if err != nil {
				return err
			}
			source := statuses{clients: c, store: &ask.Store{Ask: asker.AskStore}}
			if live {
				source.asker = asker
			}
			r, err := readReport(cmd.Context(), source, node, time.Now())
			if away := (*url.Error)(nil); errors.As(err, &away) && cmd.Context().Err() == nil {
				return fmt.Errorf("%w; what a node knows without the API server, `weir status --local` says there", err)
			}
			if err != nil {
				return err
			}
			if err := r.print(cmd.OutOrStdout()); err != nil {
				return err
			}
			if !r.healthy() {
				return errUnhealthy
			}
			return nil
		}}
	f := cmd.Flags()
	f.StringVar(&node, "node", "", "only this `node`")
	f.BoolVar(&live, "live", false, "ask the agents for what they would report now, in place of their last reports (rights: ClusterRole weir-viewer)")
	f.BoolVar(&local, "local", false, "ask the agent of this machine by its socket, without the API server: run it as root on a node, or in the agent's pod")
	f.StringVar(&runDir, "run-dir", wire.DefaultRunDir, "run `folder` of the agent that --local asks")
	return cmd
}

// report is what `weir status` says.
type report struct {
	nodes        []nodeReport
	on           string   // the CNI plugin that agents work with, empty = Weir's own
	components   []string // one line each
	faults       []string // what is not healthy and belongs to no node
	problems     []string // objects that are not in force as written
	unsupported  []string
	drops        []string
	leftToOthers []string            // nodes that leave Services to somebody else
	fanOuts      map[string][]string // nodes by the fan-out that feeds their agents
	unfed        []string            // nodes whose agents no fan-out feeds
	replicas     []string            // what the fan-outs say of themselves
	announced    []string            // addresses that nodes answer neighbours for
	fallbacks    []string            // clients of direct server return
	bgp          bgpReport
	egress       egressReport
	lost         []string // flow records, in the last hour
}

type nodeReport struct {
	name, state, why              string // state: ready, not ready, degraded, changing, clock ahead, silent, no agent
	dataplane, address, version   string
	heartbeat                     time.Duration // age; negative = never, or so far ahead
	ahead                         bool          // of this machine's clock, by more than clocks differ
	endpoints, services, policies int32
	ready                         bool
	said                          *weirv1.NodeStatusStatus // nil = nothing
}

// age says when the node reported last.
func (n *nodeReport) age() string {
	if n.ahead {
		return age(-n.heartbeat) + " ahead"
	}
	return age(n.heartbeat)
}

func (r *report) healthy() bool {
	for _, n := range r.nodes {
		if !n.ready {
			return false
		}
	}
	return len(r.faults) == 0 && len(r.problems) == 0
}

// fresh is the age up to which a report counts as what is so now.
const fresh = 5 * time.Second

// asOf says how old the oldest report is, unless all are fresh.
func (r *report) asOf() string {
	oldest := time.Duration(0)
	for _, n := range r.nodes {
		oldest = max(oldest, n.heartbeat)
	}
	if oldest <= fresh {
		return ""
	}
	return ", by reports up to " + age(oldest) + " old (--live asks the agents)"
}

// readReport reads how the cluster is, or one node of it when only is not empty.
func readReport(ctx context.Context, source statuses, only string, now time.Time) (*report, error) {
	r, c := &report{}, source.clients
	nodes, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	stale := staleAfter(len(nodes.Items))
	if only != "" {
		nodes.Items = slices.DeleteFunc(nodes.Items, func(n corev1.Node) bool { return n.Name != only })
		if len(nodes.Items) == 0 {
			return nil, fmt.Errorf("there is no node %q", only)
		}
	}
	if err := errors.Join(r.readComponents(ctx, c, now), r.readStore(ctx, source, now)); err != nil {
		return nil, err
	}
	if err := r.readAPIService(ctx, c); err != nil {
		return nil, err
	}
	if err := r.readAdmission(ctx, c); err != nil {
		return nil, err
	}
	byName, err := source.read(ctx, r, nodes.Items)
	if err != nil {
		return nil, err
	}
	agents, err := runningAgents(ctx, c)
	if err != nil {
		return nil, err
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		report := r.readNode(n, byName[n.Name], now, stale)
		if report.ready && !agents[n.Name] {
			report.state, report.ready = "no agent", false
			report.why = "its agent does not run, or is not ready; traffic and policy go on as they were; see `kubectl -n kube-system get pods -l k8s-app=weir-node -o wide`"
		}
		r.nodes = append(r.nodes, report)
	}
	if err := r.readBGP(ctx, c, nodes.Items, only == "", source.asker != nil); err != nil {
		return nil, err
	}
	without, err := stored.Find(ctx, c.Dynamic, c.Kube.Discovery())
	r.unsupported = append(r.unsupported, without...)
	return r, errors.Join(err, r.readSrcDstChecks(ctx, c))
}

// runningAgents are the nodes whose agent's pod is ready: what an agent said last does not show
// that it has gone since.
func runningAgents(ctx context.Context, c *clientset.Clients) (map[string]bool, error) {
	pods, err := c.Kube.CoreV1().Pods(deploy.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=weir-node"})
	if err != nil {
		return nil, fmt.Errorf("list the agents: %w", err)
	}
	ready := map[string]bool{}
	for i := range pods.Items {
		p := &pods.Items[i]
		if parse.IsReady(p) && p.DeletionTimestamp == nil {
			ready[p.Spec.NodeName] = true
		}
	}
	return ready, nil
}

// readComponents looks at the DaemonSet and the Deployment.
func (r *report) readComponents(ctx context.Context, c *clientset.Clients, now time.Time) error {
	ds, err := c.Kube.AppsV1().DaemonSets(deploy.Namespace).Get(ctx, "weir-node", metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		r.faults = append(r.faults, "DaemonSet kube-system/weir-node does not exist; run `weir install`")
	case err != nil:
		return fmt.Errorf("get DaemonSet weir-node: %w", err)
	default:
		r.on = networkOf(ds)
		s := ds.Status
		r.components = append(r.components, fmt.Sprintf("weir-node %d/%d ready, %d up to date", s.NumberReady, s.DesiredNumberScheduled, s.UpdatedNumberScheduled))
		if s.NumberReady < s.DesiredNumberScheduled {
			r.faults = append(r.faults, fmt.Sprintf("DaemonSet weir-node: %d of %d pods are not ready; see `kubectl -n kube-system get pods -l k8s-app=weir-node -o wide`",
				s.DesiredNumberScheduled-s.NumberReady, s.DesiredNumberScheduled))
		}
	}
	dep, err := c.Kube.AppsV1().Deployments(deploy.Namespace).Get(ctx, "weir-controller", metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		r.faults = append(r.faults, "Deployment kube-system/weir-controller does not exist; run `weir install`")
	case err != nil:
		return fmt.Errorf("get Deployment weir-controller: %w", err)
	default:
		r.components = append(r.components, fmt.Sprintf("weir-controller %d/%d ready", dep.Status.ReadyReplicas, dep.Status.Replicas))
		if dep.Status.ReadyReplicas == 0 {
			r.faults = append(r.faults, "Deployment weir-controller is not ready: blocks of removed nodes are not released; see `kubectl -n kube-system logs deploy/weir-controller`")
		}
	}
	return r.readFanOut(ctx, c, now)
}

// readAPIService says when questions of live.weir.dev cannot be asked: namespaces that are deleted
// wait for that, too.
func (r *report) readAPIService(ctx context.Context, c *clientset.Clients) error {
	have, err := c.Dynamic.Resource(apiServiceResource).Get(ctx, live.APIService, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get APIService %s: %w", live.APIService, err)
	}
	if !hasCondition(have, "Available") {
		r.components = append(r.components, "APIService "+live.APIService+" not available (see `kubectl get apiservice "+live.APIService+" -o yaml`)")
	}
	return nil
}

func (r *report) readNode(n *corev1.Node, s *weirv1.NodeStatus, now time.Time, stale time.Duration) nodeReport {
	out := nodeReport{name: n.Name, heartbeat: -1, state: "no agent", why: "no agent has reported; see `kubectl -n kube-system get pods -l k8s-app=weir-node -o wide`"}
	if s == nil {
		return out
	}
	st := &s.Status
	out.said = st
	out.dataplane, out.address, out.version = st.Dataplane, addresses(st), st.Version
	out.endpoints, out.services, out.policies = st.Endpoints, st.Services, st.Policies
	if st.LastHeartbeat != nil {
		out.heartbeat = now.Sub(st.LastHeartbeat.Time)
		if out.ahead = out.heartbeat < -clockSkew; !out.ahead {
			out.heartbeat = max(0, out.heartbeat)
		}
	}
	out.state, out.ready, out.why = "ready", true, ""
	seen := false
	for _, c := range st.Conditions {
		seen = seen || c.Type == weirv1.ConditionReady
		if c.Status == metav1.ConditionTrue {
			continue
		}
		out.why = joinNonEmpty(out.why, c.Type+": "+c.Message)
		if c.Reason == weirv1.ReasonChanging {
			out.state, out.ready = "changing", false
		} else if c.Type == weirv1.ConditionReady {
			out.state, out.ready = "not ready", false
		} else if out.ready {
			out.state, out.ready = "degraded", false
		}
	}
	if !seen {
		out.state, out.ready, out.why = "not ready", false, joinNonEmpty(out.why, "the agent has not said that it is ready")
	}
	switch {
	case out.ahead:
		out.state, out.ready = "clock ahead", false
		out.why = joinNonEmpty("its heartbeat is "+age(-out.heartbeat)+" ahead of this machine's clock: correct the clock of either; how old the report is cannot be said", out.why)
	case out.heartbeat < 0 || out.heartbeat > stale:
		out.state, out.ready = "silent", false
		out.why = joinNonEmpty("no heartbeat for "+age(out.heartbeat)+"; traffic goes on as it was; see `kubectl -n kube-system logs` of its weir-node", out.why)
	}
	r.bgp.note(st)
	r.egress.note(n.Name, st)
	r.lost = append(r.lost, flowscommand.LostByNode(n.Name, st.FlowRecords, now)...)
	for _, p := range st.Problems {
		r.problems = addOnce(r.problems, p.String())
	}
	for _, u := range st.UnsupportedFields {
		r.unsupported = addOnce(r.unsupported, u)
	}
	if st.ServiceHandling != "" && st.ServiceHandling != "Weir" {
		r.leftToOthers = append(r.leftToOthers, n.Name+": services: "+st.ServiceHandling)
	}
	if st.FanOut == "" {
		r.unfed = append(r.unfed, n.Name)
	} else {
		if r.fanOuts == nil {
			r.fanOuts = map[string][]string{}
		}
		r.fanOuts[st.FanOut] = append(r.fanOuts[st.FanOut], n.Name)
	}
	if len(st.Announced) > 0 {
		r.announced = append(r.announced, n.Name+": "+strings.Join(st.Announced, ", "))
	}
	if f := st.DSRFallback; f != nil && f.Clients > 0 {
		r.fallbacks = append(r.fallbacks, fmt.Sprintf("%s: %d, among them %s", n.Name, f.Clients, strings.Join(f.Addresses, ", ")))
	}
	for _, d := range st.Drops {
		line := fmt.Sprintf("%s: %d × %s", n.Name, d.Packets, d.Reason)
		if d.Rule != "" {
			line += " by " + d.Rule
		}
		r.drops = append(r.drops, line)
	}
	return out
}

// addresses are those by which other nodes know a node.
func addresses(st *weirv1.NodeStatusStatus) string {
	if st.NodeAddress == "" || st.NodeAddressIPv6 == "" {
		return st.NodeAddress + st.NodeAddressIPv6
	}
	return st.NodeAddress + "," + st.NodeAddressIPv6
}

// readSrcDstChecks reads what the controller says of the source/destination checks of EC2.
func (r *report) readSrcDstChecks(ctx context.Context, c *clientset.Clients) error {
	said, err := srcdst.Read(ctx, c.Kube)
	inForce, problems := said.Words()
	if inForce != "" {
		r.components = append(r.components, inForce)
	}
	r.problems = append(r.problems, problems...)
	return err
}

func (r *report) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tSTATE\tDATAPLANE\tADDRESS\tPODS\tSERVICES\tPOLICIES\tHEARTBEAT\tVERSION")
	for _, n := range r.nodes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n", terminal.OneLine(n.name), n.state, terminal.Dash(terminal.OneLine(n.dataplane)), terminal.Dash(terminal.OneLine(n.address)),
			n.endpoints, n.services, n.policies, n.age(), terminal.Dash(terminal.OneLine(n.version)))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(r.components) > 0 {
		fmt.Fprintf(out, "\n%s\n", terminal.OneLine(strings.Join(r.components, "; ")))
	}
	var bad []string
	for _, n := range r.nodes {
		if !n.ready {
			bad = append(bad, fmt.Sprintf("node %s is %s: %s", n.name, n.state, n.why))
		}
	}
	section(out, "Not healthy", append(bad, r.faults...))
	section(out, "Not in force as written", r.problems)
	section(out, "Without effect", r.unsupported)
	firstOf(out, "Services are left to others", r.leftToOthers)
	firstOf(out, "Fan-outs", r.replicas)
	firstOf(out, "Agents that have the cluster from a fan-out", r.fed())
	firstOf(out, "Addresses of load balancers that nodes answer for on their link", r.announced)
	firstOf(out, "Clients whose direct answers (DSR) did not arrive, and go through the node that they asked", r.fallbacks)
	r.egress.print(out)
	firstOf(out, "Most frequent drops", r.drops)
	firstOf(out, "Flow records lost in the last hour (docs/guides/flows.md#what-is-lost)", r.lost)
	if r.healthy() {
		fmt.Fprintf(out, "\nWeir is healthy on %d of %d nodes%s.\n", len(r.nodes), len(r.nodes), r.asOf())
		return nil
	}
	ready := 0
	for _, n := range r.nodes {
		if n.ready {
			ready++
		}
	}
	fmt.Fprintf(out, "\nWeir needs attention: %d of %d nodes are ready.\n", ready, len(r.nodes))
	return nil
}

// section prints all lines under a title, if there are any.
func section(out io.Writer, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(out, "\n%s:\n", title)
	for _, l := range lines {
		fmt.Fprintln(out, "  "+terminal.OneLine(l))
	}
}

// firstOf is section for what there may be much of and is not to be repaired: it prints the first
// lines.
func firstOf(out io.Writer, title string, lines []string) {
	const most = 15
	section(out, title, lines[:min(len(lines), most)])
	if len(lines) > most {
		fmt.Fprintf(out, "  and %d more; see `weir get nodestatuses -o yaml`\n", len(lines)-most)
	}
}

func age(d time.Duration) string {
	if d < 0 {
		return "never"
	}
	return d.Round(time.Second).String()
}

func joinNonEmpty(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

func addOnce(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}
