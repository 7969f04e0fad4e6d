// SPDX-License-Identifier: Apache-2.0

// Package agentapi is the client of the agents' API, from where the API server can be reached. It
// asks the agent of a node by the controller (group live.weir.dev), for which a right to read is
// enough; and where that does not do, by `weir-agent ask`, which it runs in the agent's pod by the
// API server's exec. Either way the rights of who asks count.
package agentapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"

	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/podexec"
)

// Why a question has no answer; found with errors.Is.
var (
	// ErrNoAgent: no agent runs on the node, or it does not answer at its socket.
	ErrNoAgent = errors.New("no agent answers on the node")
	// ErrNoRight: the user may ask neither by the controller nor by running programs in the agent's
	// pod.
	ErrNoRight = errors.New("not allowed to ask agents")
	// ErrTooOld: the agent's version does not know the question.
	ErrTooOld = errors.New("the agent's version does not know this question")
	// ErrNoStore: no store of flow records is connected to the controller.
	ErrNoStore = errors.New("no store of flow records answers")
	// ErrRefused: the agent answered that it cannot answer, and why.
	ErrRefused = errors.New("the agent refuses")
)

// Client asks agents. It is safe for concurrent use.
type Client struct {
	Kube      kubernetes.Interface
	Config    *rest.Config // of the same API server and user
	Namespace string       // of the agents
	// Report gets how a node was asked, and why not otherwise; may be nil.
	Report func(node, how string)
}

const (
	agentLabels    = "k8s-app=weir-node"
	agentContainer = "weir-node"
	agentProgram   = "/weir-agent"
)

// Ask asks the agent of a node and copies its answer to out as it comes, until the answer ends or
// ctx does. A cut of the connection ends the question at the agent too.
func (a *Client) Ask(ctx context.Context, node string, q wire.Question, out io.Writer) error {
	if len(q.Body) > wire.MaxBody {
		return fmt.Errorf("the question to node %s has %d bytes; an agent reads %d", node, len(q.Body), wire.MaxBody)
	}
	why := a.byController(ctx, node, q, out)
	var not *notLive
	if !errors.As(why, &not) {
		a.report(node, "by the controller")
		return why
	}
	a.report(node, "by exec in the agent's pod, not by the controller: "+not.reason)
	err := a.byExec(ctx, node, q, out)
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(err, ErrNoRight) && !not.right: // the user could ask by the controller, perhaps
		return fmt.Errorf("node %s: %w: %s; and %w", node, ErrNoAgent, not.reason, err)
	case errors.Is(err, ErrNoRight):
		return fmt.Errorf("%w; or, without these: %s", err, not.reason)
	}
	return fmt.Errorf("%w (by the controller: %s)", err, not.reason)
}

func (a *Client) report(node, how string) {
	if a.Report != nil {
		a.Report(node, how)
	}
}

// byExec asks the agent of a node by a program in its pod.
func (a *Client) byExec(ctx context.Context, node string, q wire.Question, out io.Writer) error {
	pod, err := a.agent(ctx, node)
	if err != nil {
		return err
	}
	command := []string{agentProgram, "ask", "--attended", q.Path}
	if q.Body != "" {
		command = append(command, "--data", q.Body)
	}
	return a.run(ctx, node, pod, command, out)
}

// AskJSON is Ask for an answer that is one JSON value.
func (a *Client) AskJSON(ctx context.Context, node string, q wire.Question, into any) error {
	var out bytes.Buffer
	if err := a.Ask(ctx, node, q, &limited{w: &out, left: maxAnswer}); err != nil {
		return err
	}
	if err := json.Unmarshal(out.Bytes(), into); err != nil {
		return fmt.Errorf("the answer of node %s to %s: %w", node, q.Path, err)
	}
	return nil
}

// Each calls f for all nodes at once, a dozen at a time, and returns what each returned, in the
// order of nodes.
func Each(nodes []string, f func(i int, node string) error) []error {
	errs := make([]error, len(nodes))
	slots := make(chan struct{}, 12)
	var all sync.WaitGroup
	for i, node := range nodes {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			errs[i] = f(i, node)
		})
	}
	all.Wait()
	return errs
}

// agent finds the running pod of a node's agent.
func (a *Client) agent(ctx context.Context, node string) (string, error) {
	pods, err := a.Kube.CoreV1().Pods(a.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: agentLabels, FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if apierrors.IsForbidden(err) {
		return "", fmt.Errorf("%w: the verb list on pods in namespace %s is needed: %w", ErrNoRight, a.Namespace, err)
	}
	if err != nil {
		return "", fmt.Errorf("find the agent of node %s: %w", node, err)
	}
	why := "it has no pod with the labels " + agentLabels
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.DeletionTimestamp != nil {
			why = "its pod " + p.Name + " is being deleted"
			continue
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.Name == agentContainer && c.State.Running != nil {
				return p.Name, nil
			}
		}
		why = "its pod " + p.Name + " does not run"
	}
	return "", fmt.Errorf("node %s: %w: in namespace %s %s", node, ErrNoAgent, a.Namespace, why)
}

// run runs a command in the agent's container.
func (a *Client) run(ctx context.Context, node, pod string, command []string, out io.Writer) error {
	exec, err := podexec.New(a.Kube, a.Config, a.Namespace, pod, agentContainer, command)
	if err != nil {
		return fmt.Errorf("prepare asking node %s: %w", node, err)
	}
	// The standard input stays open and silent: its end shows the command that nobody listens any
	// more.
	silence, end := io.Pipe()
	defer end.Close()
	said := &limited{w: &bytes.Buffer{}, left: maxStderr, quiet: true}
	err = exec.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: silence, Stdout: out, Stderr: said})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return a.explain(node, pod, strings.TrimSpace(said.w.(*bytes.Buffer).String()), err)
}

// explain says what an exec's end means.
func (a *Client) explain(node, pod, stderr string, err error) error {
	if err == nil {
		return nil
	}
	var exit utilexec.CodeExitError
	if errors.As(err, &exit) {
		stderr = strings.TrimPrefix(stderr, "weir-agent: ")
		switch {
		case exit.Code == wire.ExitRefused:
			return fmt.Errorf("node %s: %w: %s", node, ErrRefused, stderr)
		case exit.Code == wire.ExitNoAgent:
			return fmt.Errorf("node %s: %w: %s", node, ErrNoAgent, stderr)
		case exit.Code == wire.ExitUnknown, exit.Code == 1 && strings.Contains(stderr, "unknown command"):
			return fmt.Errorf("node %s: %w (%s); upgrade it with `weir install`", node, ErrTooOld, stderr)
		}
		return fmt.Errorf("asking node %s: %s (exit code %d)", node, stderr, exit.Code)
	}
	if s := podexec.Status(err); s != nil && (apierrors.IsForbidden(s) || apierrors.IsUnauthorized(s)) {
		return fmt.Errorf("%w: the verbs get and create on pods/exec in namespace %s are needed: %w", ErrNoRight, a.Namespace, s)
	} else if s != nil {
		return fmt.Errorf("asking node %s by its pod %s: %w", node, pod, s)
	}
	return fmt.Errorf("asking node %s by its pod %s: %w", node, pod, err)
}

const (
	maxAnswer = 16 << 20
	maxStderr = 8 << 10
)

// limited hands on a limited number of bytes; what is beyond is an error, or left out when it is
// quiet.
type limited struct {
	w     io.Writer
	left  int
	quiet bool
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	if _, err := l.w.Write(p[:n]); err != nil {
		return 0, err
	}
	if n < len(p) && !l.quiet {
		return n, fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	return len(p), nil
}
