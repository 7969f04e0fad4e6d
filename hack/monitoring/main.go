// SPDX-License-Identifier: Apache-2.0

// Command monitoring writes what is made of deploy/monitoring/rules.yaml and of the panels in this
// package: the dashboards for Grafana, deploy/monitoring/dashboards, and
// deploy/monitoring/prometheus-operator.yaml, which brings all of it to a cluster that runs the
// Prometheus Operator. Run it from the repository's root: go run ./hack/monitoring
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	out := flag.String("o", "deploy/monitoring", "`folder` with rules.yaml, to write to")
	flag.Parse()
	rules, err := os.ReadFile(filepath.Join(*out, "rules.yaml"))
	if err == nil {
		var files map[string][]byte
		if files, err = generate(rules); err == nil {
			err = write(*out, files)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "monitoring:", err)
		os.Exit(1)
	}
}

// generate returns the files by their path in deploy/monitoring.
func generate(rules []byte) (map[string][]byte, error) {
	files, shown := map[string][]byte{}, map[string][]byte{}
	for _, d := range dashboards {
		var text bytes.Buffer
		e := json.NewEncoder(&text)
		e.SetEscapeHTML(false) // expressions have < and >
		e.SetIndent("", " ")
		if err := e.Encode(d.grafana()); err != nil {
			return nil, err
		}
		shown[d.name+".json"] = text.Bytes()
		files["dashboards/"+d.name+".json"] = text.Bytes()
	}
	operator, err := operatorObjects(rules, shown)
	if err != nil {
		return nil, err
	}
	files["prometheus-operator.yaml"] = operator
	return files, nil
}

func write(dir string, files map[string][]byte) error {
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
