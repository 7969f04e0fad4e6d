package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The committed definitions are the ones that the types give.
func TestCommittedIsGenerated(t *testing.T) {
	want, err := generate("../..")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range want {
		got, err := os.ReadFile(filepath.Join("../crds", name))
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("deploy/crds/%s is not what the types give (%v): run go run ./deploy/gen", name, err)
		}
	}
	have, err := filepath.Glob("../crds/*.yaml")
	if err != nil || len(have) != len(want) {
		t.Errorf("deploy/crds has %d files, the types give %d (%v)", len(have), len(want), err)
	}
}
