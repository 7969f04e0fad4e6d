// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/objects"
)

const recordedCalico = "../../internal/migrate/calico/testdata/cluster.yaml"

// migrateOutput runs weir migrate on a text of recorded objects.
func migrateOutput(objects string, args ...string) (string, error) {
	out, _, err := migrateOutputs(objects, args...)
	return out, err
}

func migrateOutputs(objects string, args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	root := newRoot()
	root.SetArgs(append([]string{"migrate"}, args...))
	root.SetIn(strings.NewReader(objects))
	root.SetOut(&out)
	root.SetErr(&errs)
	err = root.Execute()
	return out.String(), errs.String(), err
}

func TestMigratePlan(t *testing.T) {
	got, err := migrateOutput("", "--from", "calico", "-f", recordedCalico)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "migrate-from-calico.md", "plan", got)
}

// TestMigrateStops: what has to be changed comes first, and the exit code says that there is
// something.
func TestMigrateStops(t *testing.T) {
	raw, err := os.ReadFile(recordedCalico)
	if err != nil {
		t.Fatal(err)
	}
	got, err := migrateOutput(strings.Replace(string(raw), "cidr: 10.244.0.0/16", `cidr: "10.244\u001b[2J"`, 1), "--from", "calico", "-f", "-")
	if !errors.Is(err, errUnhealthy) || !strings.Contains(got, "To be changed before:\n  IPPool default-ipv4-ippool, spec.cidr = 10.244") {
		t.Errorf("%v\n%s", err, got)
	}
	if strings.Contains(got, "\x1b") {
		t.Errorf("what an object says reaches the terminal: %q", got)
	}
}

// TestMigrateObjects: what is printed with -o yaml can be applied.
func TestMigrateObjects(t *testing.T) {
	got, err := migrateOutput("", "--from", "calico", "-f", recordedCalico, "-o", "yaml")
	if err != nil {
		t.Fatal(err)
	}
	all, err := deploy.Parse([]byte(got))
	if err != nil || len(all) != 5 {
		t.Fatalf("%d objects, %v:\n%s", len(all), err, got)
	}
	for _, u := range all {
		if u.GetAPIVersion() != "projectcalico.org/v3" {
			t.Errorf("%s is of %s", objects.Describe(u), u.GetAPIVersion())
		}
	}
}

func TestMigrateArguments(t *testing.T) {
	for _, args := range [][]string{{}, {"--from", "another"}, {"--from", "flannel", "--in-place"}, {"--from", "flannel", "--apply", "-f", "x"}, {"--from", "calico", "-o", "json"}, {"--from", "calico", "-f", "/does/not/exist"}} {
		if out, err := migrateOutput("", args...); err == nil {
			t.Errorf("%q: %s", args, out)
		}
	}
}

// TestMigrateOthers: plans of other plugins than Calico, from recorded objects.
func TestMigrateOthers(t *testing.T) {
	const of = "../../internal/migrate/"
	got, err := migrateOutput("", "--from", "flannel", "-f", of+"flannel/testdata/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "migrate-from-others.md", "flannel", got)
	for plugin, want := range map[string]string{"kube-router": "--cluster-asn = 64600", "cilium": "spec.ingress[0].authentication"} {
		file := of + strings.ReplaceAll(plugin, "-", "") + "/testdata/cluster.yaml"
		got, err := migrateOutput("", "--from", plugin, "-f", file)
		if err != nil || !strings.Contains(got, want) {
			t.Errorf("%v: %q is not in\n%s", err, want, got)
		}
		objects, err := migrateOutput("", "--from", plugin, "-f", file, "-o", "yaml")
		if all, parseErr := deploy.Parse([]byte(objects)); err != nil || parseErr != nil || len(all) != 2 {
			t.Errorf("%v %v:\n%s", err, parseErr, objects)
		}
		if _, err := migrateOutput("", "--from", plugin, "--apply"); err == nil || !strings.Contains(err.Error(), "do not reach each other's pods") {
			t.Errorf("--apply: %v", err)
		}
		// What stops a plan is an exit code of its own.
		if got, err := migrateOutput("apiVersion: v1\nkind: Node\nmetadata: {name: \"n\\u001b[2J\"}\n", "--from", plugin, "-f", "-"); !errors.Is(err, errUnhealthy) || strings.Contains(got, "\x1b") {
			t.Errorf("%v: %q", err, got)
		}
	}
}
