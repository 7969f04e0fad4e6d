// SPDX-License-Identifier: Apache-2.0

package scenario

import "github.com/weir-net/weir/internal/dataplane"

// needs are the words of the command needs.
var needs = func() []string {
	words := []string{FeatureTime}
	for _, f := range dataplane.Features {
		words = append(words, string(f))
	}
	return words
}()
