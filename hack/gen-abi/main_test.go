// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

func TestGenerate(t *testing.T) {
	code, err := generate([]*btf.Enum{
		{Name: "flag", Values: []btf.EnumValue{{Name: "ADDR_NAT_OUTGOING", Value: 1}, {Name: "MARK_OWN_", Value: 0x0be00000}}},
		{Name: "count", Values: []btf.EnumValue{{Name: "COUNT_DSR_FALLEN", Value: 0}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"AddrNATOutgoing = 0x1\n", "MarkOwn         = 0xbe00000\n", "CountDSRFallen = 0x0\n"} {
		if !strings.Contains(string(code), want) {
			t.Errorf("%q is not in\n%s", want, code)
		}
	}
	if strings.Index(string(code), "enum count") > strings.Index(string(code), "enum flag") {
		t.Error("enums are not in the order of their names")
	}
}

func TestGenerateRefuses(t *testing.T) {
	for name, enums := range map[string][]*btf.Enum{
		"nothing":        nil,
		"the same names": {{Name: "a", Values: []btf.EnumValue{{Name: "X_A", Value: 1}}}, {Name: "b", Values: []btf.EnumValue{{Name: "X_A_", Value: 2}}}},
	} {
		if code, err := generate(enums); err == nil {
			t.Errorf("%s: no error, and\n%s", name, code)
		}
	}
}
