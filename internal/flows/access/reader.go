// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/ask"
)

// Reader reads records by rights of somebody else, of which a user gets what the user may see.
type Reader struct {
	From  ask.Reader
	Scope *Scope
}

// Read is ask.Reader's, for records alone: sums and the status are about all namespaces.
func (r Reader) Read(ctx context.Context, q flows.Question, give func(*flows.Flow) error) (*ask.Answer, error) {
	asked := q
	asked.Filter = r.Scope.Ask(q.Filter)
	return r.From.Read(ctx, asked, func(f *flows.Flow) error {
		if f = r.Scope.Show(f, q.Filter); f != nil {
			return give(f)
		}
		return nil
	})
}
