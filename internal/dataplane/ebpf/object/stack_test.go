// SPDX-License-Identifier: Apache-2.0

package object

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
)

// TestStack: no chain of calls takes more of the stack than kernels like 6.1 allow, which count
// each frame in steps of 32 bytes (6.18, with a compiler for programs, of 16).
func TestStack(t *testing.T) {
	t.Parallel()
	const most, step = 512, 32
	for family, read := range map[string]func() (*ebpf.CollectionSpec, error){bpffs.IPv4: abi.LoadWeir, bpffs.IPv6: abi.LoadWeir6} {
		spec, err := read()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range slices.Sorted(maps.Keys(spec.Programs)) {
			frames := framesOf(spec.Programs[name].Instructions)
			if len(frames) == 0 || frames[name] == nil {
				t.Fatalf("%s %s: its frames are not found: %v", family, name, frames)
			}
			if bytes, calls := deepest(frames, name, step); bytes > most {
				t.Errorf("%s: %s takes %d bytes: %s", family, name, bytes, strings.Join(calls, ", "))
			}
		}
	}
}

// frame is what a function has of the stack, in bytes, and whom it calls.
type frame struct {
	bytes int
	calls map[string]bool
}

// framesOf finds the functions of a program. How deep one goes is told by what it writes and reads
// there, and by addresses there that it makes.
func framesOf(all asm.Instructions) map[string]*frame {
	out := map[string]*frame{}
	var f *frame
	address := map[asm.Register]bool{} // holds the frame's end
	called := map[string]bool{}
	for _, ins := range all {
		if ins.IsFunctionCall() {
			called[ins.Reference()] = true
		}
	}
	for i, ins := range all {
		if s := ins.Symbol(); i == 0 || called[s] {
			f, address = &frame{calls: map[string]bool{}}, map[asm.Register]bool{}
			out[s] = f
		}
		class, op := ins.OpCode.Class(), ins.OpCode.ALUOp()
		switch {
		case ins.IsFunctionCall():
			f.calls[ins.Reference()] = true
		case class.IsALU() && op == asm.Mov && ins.OpCode.Source() == asm.RegSource:
			address[ins.Dst] = ins.Src == asm.R10
		case class.IsALU() && op == asm.Add && ins.OpCode.Source() == asm.ImmSource && address[ins.Dst]:
			f.bytes, address[ins.Dst] = max(f.bytes, int(-ins.Constant)), false
		case class.IsLoad() && ins.Src == asm.R10, class.IsStore() && ins.Dst == asm.R10:
			f.bytes = max(f.bytes, int(-ins.Offset))
		}
	}
	return out
}

// deepest returns the bytes of the chain of calls that takes most, and its functions.
func deepest(frames map[string]*frame, name string, step int) (bytes int, calls []string) {
	for c := range frames[name].calls {
		if b, path := deepest(frames, c, step); b > bytes {
			bytes, calls = b, path
		}
	}
	return bytes + (max(frames[name].bytes, 1)+step-1)/step*step, append([]string{name}, calls...)
}
