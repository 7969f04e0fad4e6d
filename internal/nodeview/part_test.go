// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"fmt"
	"testing"
)

// TestPiecesAreBounded holds that a piece is made once for who asks for the same one after the
// other, and that only some are kept, whatever is asked for.
func TestPiecesAreBounded(t *testing.T) {
	t.Parallel()
	p, made := &Part{}, 0
	for i := range 5 * mostPieces {
		for range 3 {
			got, err := p.Piece(fmt.Sprint(i), func() ([][]byte, error) { made++; return [][]byte{{byte(i)}}, nil })
			if err != nil || got[0][0] != byte(i) {
				t.Fatalf("piece %d is %v, %v", i, got, err)
			}
		}
		if made != i+1 || len(p.pieces) > mostPieces {
			t.Fatalf("after %d pieces %d were made, and %d are kept", i+1, made, len(p.pieces))
		}
	}
}
