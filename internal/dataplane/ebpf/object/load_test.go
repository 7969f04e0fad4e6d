// SPDX-License-Identifier: Apache-2.0

package object

import (
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/weir-net/weir/internal/nettest"
)

// What the verifier does not take is told from other reasons why programs do not load.
func TestRefused(t *testing.T) {
	t.Parallel()
	nettest.NeedRoot(t, "loading programs")
	_, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.LoadMem(asm.R0, asm.R3, 0, asm.DWord), asm.Return()}})
	if err = refused(err); !errors.Is(err, ErrRefused) {
		t.Errorf("a program that reads what it was not given: %v", err)
	}
	if err := refused(os.ErrPermission); errors.Is(err, ErrRefused) {
		t.Error("a missing right counts as the verifier's refusal")
	}
}
