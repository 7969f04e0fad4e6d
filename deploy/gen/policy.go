// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/weir-net/weir/deploy"
)

// policyModule is the module of policy.networking.k8s.io; test/policyapi says which version.
const policyModule = "sigs.k8s.io/network-policy-api"

// generatePolicy returns the definitions of policy.networking.k8s.io by file name: as they are
// published, of the experimental channel, which has all fields, without the descriptions.
func generatePolicy(root string) (map[string][]byte, error) {
	cmd := exec.Command("go", "mod", "download", "-json", policyModule) // go list names no folder where nothing was built yet
	cmd.Dir = filepath.Join(root, "test/policyapi")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var module struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &module); module.Error != "" {
		err = errors.New(module.Error)
	} else if err == nil {
		err = jsonErr
	}
	if err != nil {
		return nil, fmt.Errorf("downloading %s: %w", policyModule, err)
	}
	published, err := filepath.Glob(filepath.Join(module.Dir, "config/crd/experimental", "policy.networking.k8s.io_*.yaml"))
	if err != nil {
		return nil, err
	}
	if len(published) == 0 {
		return nil, fmt.Errorf("%s has no definitions in %q", policyModule, module.Dir)
	}
	files := map[string][]byte{}
	for _, f := range published {
		raw, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		content, err := adaptPublished(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(f), err)
		}
		files[filepath.Base(f)] = content
	}
	return files, nil
}

func adaptPublished(raw []byte) ([]byte, error) {
	var crd map[string]any
	if err := yaml.Unmarshal(raw, &crd); err != nil {
		return nil, err
	}
	delete(crd, "status")
	undescribe(crd)
	if err := unstructured.SetNestedField(crd, deploy.ManagedBy, "metadata", "labels", deploy.ManagedByLabel); err != nil {
		return nil, err
	}
	out, err := yaml.Marshal(crd)
	if err != nil {
		return nil, err
	}
	return append([]byte("# Made by deploy/gen; do not edit.\n"), out...), nil
}

// undescribe removes the descriptions of a schema. A field that is called so is none.
func undescribe(v any) {
	switch v := v.(type) {
	case map[string]any:
		if _, text := v["description"].(string); text {
			delete(v, "description")
		}
		for _, sub := range v {
			undescribe(sub)
		}
	case []any:
		for _, e := range v {
			undescribe(e)
		}
	}
}
