// SPDX-License-Identifier: Apache-2.0

// Command gen writes deploy/policy, the published CustomResourceDefinitions of
// policy.networking.k8s.io, and deploy/crds: the CustomResourceDefinitions of weir.dev from
// api/weir/v1, and those of projectcalico.org from the published module
// github.com/projectcalico/api, from api/ipam/v3 and from api/egress/v3, all by controller-gen. The
// published types are made for another kind of server, so what their markers cannot say is put
// right here. Run it from the repository's root: go run ./deploy/gen
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

const (
	calicoTypes = "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	weirTypes   = "./api/weir/v1"
	ipamTypes   = "./api/ipam/v3"
	egressTypes = "./api/egress/v3"
)

func main() {
	out := flag.String("o", "deploy", "`folder` with the folders to write to")
	flag.Parse()
	for dir, generate := range map[string]func(string) (map[string][]byte, error){"crds": generate, "policy": generatePolicy} {
		files, err := generate(".")
		if err == nil {
			err = write(filepath.Join(*out, dir), files)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "gen:", err)
			os.Exit(1)
		}
		fmt.Printf("wrote %d CustomResourceDefinitions to %s\n", len(files), filepath.Join(*out, dir))
	}
}

func write(dir string, files map[string][]byte) error {
	old, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return err
	}
	for _, f := range old {
		if files[filepath.Base(f)] == nil {
			if err := os.Remove(f); err != nil {
				return err
			}
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate returns the files by name; root is the repository's.
func generate(root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, run := range []struct{ paths, crd string }{
		// The texts of the published types are long, and not ours: no descriptions.
		{calicoTypes, "crd:allowDangerousTypes=true,maxDescLen=0"},
		{weirTypes, "crd"},
		{ipamTypes, "crd"},
		{egressTypes, "crd"},
	} {
		dir, err := os.MkdirTemp("", "weir-crds-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		cmd := exec.Command("go", "tool", "controller-gen", run.crd, "paths="+run.paths, "output:crd:dir="+dir)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("controller-gen for %s: %w\n%s", run.paths, err, out)
		}
		made, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
		if err != nil {
			return nil, err
		}
		for _, f := range made {
			raw, err := os.ReadFile(f)
			if err != nil {
				return nil, err
			}
			name, content, err := adapt(raw)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", filepath.Base(f), err)
			}
			files[name] = content
		}
	}
	return files, nil
}
