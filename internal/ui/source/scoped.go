// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/access"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/relay/live"
	"github.com/weir-net/weir/internal/ui"
)

// Scoped are records that are asked for by rights of somebody else, of which a user gets what the
// user may see.
type Scoped struct {
	From  ui.Records
	Guard *access.Guard
	User  *peerauth.User
}

// Records implements ui.Records.
func (s Scoped) Records(ctx context.Context, f flows.Filter, most int) (*ask.Found, error) {
	scope, err := s.Guard.Scope(ctx, s.User)
	if err != nil {
		return nil, err
	}
	if scope.Nothing() {
		return nil, fmt.Errorf("%w: the verb list on %s in group %s is needed, in a namespace or in all, as ClusterRole weir-flows-viewer gives it", ui.ErrNoRight, access.Resource, live.Group)
	}
	found, err := s.From.Records(ctx, scope.Ask(f), most)
	if err != nil {
		return nil, fmt.Errorf("flow records cannot be read: %v", err) //nolint:errorlint // that this server has not the right is not the user's matter
	}
	shown := found.Flows[:0:0]
	for _, r := range found.Flows {
		if r := scope.Show(r, f); r != nil {
			shown = append(shown, r)
		}
	}
	out := *found
	out.Flows = shown
	if !scope.All() {
		out.More, out.Left = out.More || out.Left > 0, 0 // how many there are is about all namespaces
	}
	return &out, nil
}
