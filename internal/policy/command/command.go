// SPDX-License-Identifier: Apache-2.0

// Package command is `weir policy`: what policies would do to the flows that were recorded, and
// policies that allow these. It connects objects of the cluster, records of agents or files, and
// what packages preview and recommend make of both.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/exitcode"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/policy/objects"
	"github.com/weir-net/weir/internal/policy/past"
	"github.com/weir-net/weir/internal/policy/preview"
	"github.com/weir-net/weir/internal/policy/recommend"
	"github.com/weir-net/weir/internal/terminal"
)

// Exit codes of `weir policy preview`, in addition to 0 and 1.
const (
	codeDenied  = 2
	codeUnknown = 3
	codeAllowed = 4
)

// Reach connects to the API server and to agents with the user's rights.
type Reach func() (*clientset.Clients, *agentapi.Client, error)

// New returns the command.
func New(reach Reach) *cobra.Command {
	c := &cobra.Command{Use: "policy", Short: "Try policies on the flows that were recorded, and make policies of these"}
	c.AddCommand(newPreview(reach), newRecommend(reach))
	return c
}

// inputs say where objects and records come from.
type inputs struct {
	reach   Reach
	since   time.Duration
	records string
	objects string

	clients *clientset.Clients // nil with objects of a file
	source  past.Source
	cluster *objects.Cluster
}

func (in *inputs) flags(c *cobra.Command) {
	f := c.Flags()
	f.DurationVar(&in.since, "since", 0, "only flows that were seen within this time, such as 1h; 0 is all that is kept")
	f.StringVar(&in.records, "file", "", "`file` with records, as weir flows -o json writes them, in place of asking the nodes; - is the standard input")
	f.StringVar(&in.objects, "objects", "", "`file` with the objects of the cluster, as kubectl get -o yaml prints them, in place of the API server's; needs --file")
}

// open reads the objects, and finds where records are.
func (in *inputs) open(ctx context.Context, stdin io.Reader) (err error) {
	var agents *agentapi.Client
	switch {
	case in.since < 0:
		return errors.New("--since is not negative")
	case in.records == "-" && in.objects == "-":
		return errors.New("the standard input is named twice")
	case in.objects == "":
		if in.clients, agents, err = in.reach(); err != nil {
			return err
		}
		in.cluster, err = objects.Read(ctx, in.clients.Kube, in.clients.Dynamic)
	case in.records == "":
		return errors.New("--objects needs --file: of a cluster that is not asked there are no other records")
	default:
		var text []byte
		if text, err = readFile(stdin, in.objects); err == nil {
			in.cluster, err = recorded(in.objects, text)
		}
	}
	if err != nil {
		return err
	}
	if in.records == "" {
		in.source = &past.Nodes{Store: &ask.Store{Ask: agents.AskStore}, Agents: ask.Agents{Nodes: slices.Sorted(maps.Keys(in.cluster.Now().Nodes)), Ask: agents.Ask}}
		return nil
	}
	if in.records == "-" {
		in.source = &past.File{Name: "standard input", From: stdin}
		return nil
	}
	file, err := os.Open(in.records)
	if err != nil {
		return fmt.Errorf("read records: %w", err)
	}
	context.AfterFunc(ctx, func() { file.Close() })
	in.source = &past.File{Name: in.records, From: file}
	return nil
}

// recorded reads the objects of a file.
func recorded(name string, text []byte) (*objects.Cluster, error) {
	all, err := deploy.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return objects.FromObjects(all)
}

// collected are the questions of the records.
type collected struct {
	*past.Past
	since       time.Time
	questions   []*past.Question
	gaps, notes []string
}

// collect reads the records.
func (in *inputs) collect(ctx context.Context, now *model.Cluster, bySource bool) (*collected, error) {
	out := &collected{Past: past.New(bySource)}
	if in.since > 0 {
		out.since = time.Now().Add(-in.since).UTC()
	}
	var err error
	out.gaps, out.notes, err = in.source.Each(ctx, out.since, func(f *flows.Flow) error {
		out.Add(f)
		return nil
	})
	if err != nil {
		return nil, err
	}
	out.questions = out.Questions(now.Pods.Get)
	return out, nil
}

func newPreview(reach Reach) *cobra.Command {
	in := inputs{reach: reach}
	var files, deleted []string
	var namespace, output string
	c := &cobra.Command{
		Use:   "preview (-f FILE | --delete KIND/NAME)…",
		Short: "Say which recorded flows would be denied, or allowed, if these policies were applied; exit code 0 none, 2 denied, 3 unknown, 4 allowed",
		Long: `preview takes the flows that nodes recorded, with the labels that pods had then, and computes by the rules that nodes enforce
what policy says of each now, and what it would say with the objects of the files applied and others deleted. It changes nothing.
Objects are NetworkPolicies, those of projectcalico.org/v3, ClusterNetworkPolicies, AdminNetworkPolicies, Tiers and NetworkSets; a staged
policy of a file counts as if it were in force. They are checked as weir apply does, by the API server where the user may apply them.

Exit codes: 0 no flow is decided otherwise; 1 an error; 2 some would be denied that are allowed now; 3 none would, as far as is known, but
some are not known, or records are missing; 4 some would be allowed that are denied now, and nothing else changes.

It lists policies, pods, namespaces, nodes, service accounts and EndpointSlices of the whole cluster, and asks agents as weir flows does.`,
		Example: "  weir policy preview -f new.yaml --since 1h\n  weir policy preview --delete networkpolicy/old -n shop -o json\n  weir flows export > records.json; weir policy preview -f new.yaml --file records.json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case len(files)+len(deleted) == 0:
				return errors.New("name files with -f, or objects with --delete")
			case output != "" && output != "json":
				return fmt.Errorf("output %q: json, or none for text", output)
			}
			ctx := cmd.Context()
			if err := in.open(ctx, cmd.InOrStdin()); err != nil {
				return err
			}
			change, err := in.change(ctx, cmd, files, deleted, namespace)
			if err != nil {
				return err
			}
			report, err := in.preview(ctx, change)
			if err != nil {
				return err
			}
			if output == "json" {
				text, err := terminal.JSON(report, "  ")
				if err == nil {
					_, err = io.WriteString(cmd.OutOrStdout(), text)
				}
				if err != nil {
					return err
				}
			} else if err := report.Write(cmd.OutOrStdout()); err != nil {
				return err
			}
			return code(report)
		},
	}
	in.flags(c)
	f := c.Flags()
	f.StringSliceVarP(&files, "filename", "f", nil, "`file` with objects to apply, - = standard input")
	f.StringSliceVar(&deleted, "delete", nil, "an object to delete, as `kind/name` or kind/namespace/name")
	f.StringVarP(&namespace, "namespace", "n", "default", "namespace of objects that say none")
	f.StringVarP(&output, "output", "o", "", "json, or none for text")
	return c
}

// change makes the change that files and names say.
func (in *inputs) change(ctx context.Context, cmd *cobra.Command, files, deleted []string, namespace string) (*objects.Change, error) {
	change := in.cluster.Try()
	for _, file := range files {
		text, err := readFile(cmd.InOrStdin(), file)
		if err != nil {
			return nil, err
		}
		all, err := objects.Parse(file, text, namespace)
		if err != nil {
			return nil, err
		}
		for _, u := range all {
			if in.clients != nil {
				stored, unasked, err := objects.Admit(ctx, in.clients.Dynamic, u)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", file, err)
				}
				if u = stored; unasked != "" {
					fmt.Fprintf(cmd.ErrOrStderr(), "warning: the API server did not check it: %s\n", terminal.OneLine(unasked))
				}
			}
			problems, err := change.Apply(u)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			for _, p := range problems {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", terminal.OneLine(p.String()))
			}
		}
	}
	for _, what := range deleted {
		if err := change.Delete(what, namespace); err != nil {
			return nil, err
		}
	}
	return change, nil
}

// preview reads the records, and compares.
func (in *inputs) preview(ctx context.Context, change *objects.Change) (*preview.Report, error) {
	before, after := in.cluster.Now(), change.Model()
	c, err := in.collect(ctx, before, preview.LooksAtSources(before, after))
	if err != nil {
		return nil, err
	}
	r := preview.Run(before, after, c.questions).Report()
	r.Since, r.Records, r.NotAsked, r.Gaps, r.Notes = c.since, c.Records, c.Other, c.gaps, c.notes
	if c.Records == 0 {
		r.Gaps = append(r.Gaps, "there are no records of that time")
	}
	return r, nil
}

// code is how the program ends after a report.
func code(r *preview.Report) error {
	switch {
	case len(r.Denied) > 0:
		return &exitcode.Error{Code: codeDenied}
	case len(r.Unknown)+len(r.Gaps) > 0:
		return &exitcode.Error{Code: codeUnknown}
	case len(r.Allowed) > 0:
		return &exitcode.Error{Code: codeAllowed}
	}
	return nil
}

func newRecommend(reach Reach) *cobra.Command {
	in := inputs{reach: reach}
	var o recommend.Options
	c := &cobra.Command{
		Use:   "recommend --namespace NAMESPACE",
		Short: "Write policies that allow the flows of a namespace that were recorded, and nothing else",
		Long: `recommend writes, as YAML, a policy for each workload of a namespace that allows what nodes recorded that policy allowed, and one that
isolates every pod of it. Pods are selected by labels that tell workloads apart, not by those that controllers generate; pods of other
namespaces by kubernetes.io/metadata.name, too; everything else by address. What the records leave open is said in comments: read them.
It changes nothing: look at what it writes with weir policy preview -f, and apply it.

It lists policies, pods, namespaces, nodes, service accounts and EndpointSlices of the whole cluster, and asks agents as weir flows does.`,
		Example: "  weir policy recommend --namespace shop --since 1h > shop.yaml\n  weir policy preview -f shop.yaml\n  weir policy recommend -n shop --calico --staged",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Staged && !o.Calico {
				return errors.New("--staged needs --calico: NetworkPolicies of Kubernetes cannot be staged")
			}
			if err := in.open(cmd.Context(), cmd.InOrStdin()); err != nil {
				return err
			}
			text, err := in.recommend(cmd.Context(), o)
			if err == nil {
				_, err = io.WriteString(cmd.OutOrStdout(), text)
			}
			return err
		},
	}
	in.flags(c)
	f := c.Flags()
	f.StringVarP(&o.Namespace, "namespace", "n", "", "`namespace` that the policies are for")
	f.BoolVar(&o.Calico, "calico", false, "NetworkPolicies of projectcalico.org/v3, which can name ICMP and other protocols")
	f.BoolVar(&o.Staged, "staged", false, "with --calico: StagedNetworkPolicies, which decide nothing")
	_ = c.MarkFlagRequired("namespace")
	return c
}

// recommend reads the records, and writes policies.
func (in *inputs) recommend(ctx context.Context, o recommend.Options) (string, error) {
	now := in.cluster.Now()
	if now.Namespaces[o.Namespace] == nil {
		return "", fmt.Errorf("there is no namespace %q", o.Namespace)
	}
	c, err := in.collect(ctx, now, false)
	if err != nil {
		return "", err
	}
	set := recommend.Make(now, c.questions, o)
	if set.Flows == 0 {
		return "", fmt.Errorf("no flow of namespace %s that policy allowed was recorded: of nothing no policy can be made", o.Namespace)
	}
	for _, text := range slices.Concat(c.gaps, c.notes) {
		set.Unsure = append(set.Unsure, "records are missing: "+text)
	}
	return set.YAML(fmt.Sprintf("What weir policy recommend made of %d flows of namespace %s, seen from %s to %s.",
		set.Flows, o.Namespace, set.First.UTC().Format(time.RFC3339), set.Last.UTC().Format(time.RFC3339))), nil
}

func readFile(stdin io.Reader, name string) ([]byte, error) {
	if name == "-" {
		text, err := io.ReadAll(stdin)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		return text, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	return text, nil
}
