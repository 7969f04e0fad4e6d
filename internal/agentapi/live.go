// SPDX-License-Identifier: Apache-2.0

package agentapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/relay/live"
)

// notLive says why a question was not answered by the controller; nothing was written, so it can be
// asked otherwise.
type notLive struct {
	reason string
	right  bool // the user has not the right
}

func (e *notLive) Error() string { return e.reason }

// beginWithin is how long an answer by the controller may take to begin.
const beginWithin = 20 * time.Second

// byController asks a node's agent by the API server and the controller (group live.weir.dev).
func (a *Client) byController(ctx context.Context, node string, q wire.Question, out io.Writer) error {
	at, err := url.Parse(q.Path)
	if err != nil {
		return fmt.Errorf("the path %q: %w", q.Path, err)
	}
	verb := live.Verbs()[at.Path]
	if verb == "" {
		return &notLive{reason: "the controller does not know the question " + at.Path}
	}
	method := http.MethodGet
	if verb == "create" {
		method = http.MethodPost
	}
	beginning, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(beginWithin, cancel)
	defer late.Stop()
	// Not the REST client of discovery: that ends every request after half a minute.
	req := a.Kube.CoreV1().RESTClient().Verb(method).AbsPath(live.Path(node, at.Path)).SetHeader("Content-Type", "application/json")
	for key, values := range at.Query() {
		for _, v := range values {
			req = req.Param(key, v)
		}
	}
	if method == http.MethodPost {
		req = req.Body([]byte(q.Body))
	}
	answer, err := req.Stream(beginning)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && !late.Stop():
		return &notLive{reason: "the controller does not answer"}
	case err != nil:
		return explainLive(node, verb, at.Path, err)
	}
	late.Stop()
	defer answer.Close()
	if _, err := io.Copy(out, answer); ctx.Err() != nil {
		return ctx.Err()
	} else if err != nil {
		return fmt.Errorf("the answer of node %s to %s: %w", node, at.Path, err)
	}
	return nil
}

// AskStore asks the cluster's store of flow records, by the API server and the controller, and
// copies its answer to out as it comes. The errors are ErrNoStore, ErrNoRight, and ErrRefused.
func (a *Client) AskStore(ctx context.Context, q wire.Question, out io.Writer) error {
	err := a.byController(ctx, live.AllNodes, q, out)
	var not *notLive
	switch {
	case errors.As(err, &not) && not.right:
		return fmt.Errorf("%w: %s", ErrNoRight, not.reason)
	case errors.As(err, &not):
		return fmt.Errorf("%w: %s", ErrNoStore, not.reason)
	case errors.Is(err, ErrTooOld): // the controller's, too
		return fmt.Errorf("%w: %w", ErrNoStore, err)
	}
	return err
}

// explainLive says what an answer that is none means.
func explainLive(node, verb, path string, err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return &notLive{reason: err.Error()}
	}
	if details := status.Status().Details; details != nil {
		for _, c := range details.Causes {
			switch string(c.Type) {
			case live.CauseRefused:
				return fmt.Errorf("node %s: %w: %s", node, ErrRefused, c.Message)
			case live.CauseUnknown:
				return fmt.Errorf("node %s: %w (%s); upgrade it with `weir install`", node, ErrTooOld, c.Message)
			case live.CauseNoAgent:
				return &notLive{reason: c.Message}
			}
		}
	}
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		return &notLive{right: true, reason: fmt.Sprintf("the verb %s on %s%s in group %s is needed, as ClusterRole %s gives it", verb, live.Resource, path, live.Group, live.RoleFor(path))}
	case apierrors.IsNotFound(err):
		return &notLive{reason: "the API server does not know the group " + live.Group + " (APIService " + live.APIService + ")"}
	}
	return &notLive{reason: err.Error()}
}
