// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The committed definitions are the ones that the types give.
func TestCommittedIsGenerated(t *testing.T) {
	for dir, generate := range map[string]func(string) (map[string][]byte, error){"crds": generate, "policy": generatePolicy} {
		want, err := generate("../..")
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range want {
			got, err := os.ReadFile(filepath.Join("..", dir, name))
			if err != nil || !bytes.Equal(got, content) {
				t.Errorf("deploy/%s/%s is not what the types give (%v): run go run ./deploy/gen", dir, name, err)
			}
		}
		have, err := filepath.Glob(filepath.Join("..", dir, "*.yaml"))
		if err != nil || len(have) != len(want) {
			t.Errorf("deploy/%s has %d files, the types give %d (%v)", dir, len(have), len(want), err)
		}
	}
}
