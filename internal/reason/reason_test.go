// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"os"
	"os/exec"
	"testing"
)

func TestGeneratedIsCurrent(t *testing.T) {
	want, err := exec.Command("go", "run", "../../hack/gen-reasons", "../../bpf/reasons.h", "-").Output()
	if err != nil {
		t.Fatalf("gen-reasons: %v", err)
	}
	got, err := os.ReadFile("names.go")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("names.go is not what bpf/reasons.h gives: run go generate ./internal/reason")
	}
}

func TestString(t *testing.T) {
	if s := PolicyIngress.String(); s != "POLICY_INGRESS" {
		t.Error(s)
	}
	if s := Reason(4711).String(); s != "REASON_4711" {
		t.Error(s)
	}
	if r, ok := All()["TTL"]; !ok || r != TTL || r.Text() == "" {
		t.Error(r, ok)
	}
}
