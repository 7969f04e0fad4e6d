// SPDX-License-Identifier: Apache-2.0

package object

import "github.com/cilium/ebpf"

// CallsOfNames is the map by which the programs to pods, of both families, call what reads answers
// of DNS servers for policy by domain name. NamesProgram is IPv4's, and reads those of both.
const (
	CallsOfNames = "weir_name_calls"
	NamesProgram = "weir_names_learn"
)

// CallNames makes the programs to pods hand answers of DNS servers to NamesProgram, or not, and
// reports whether they did otherwise until now. It loads the program when it is called first.
func (l *Collection) CallNames(on bool) (changed bool, err error) {
	if on && l.Programs[NamesProgram] == nil {
		c, err := loadPrograms(l, nil, NamesProgram)
		if err != nil {
			return false, err
		}
		l.Programs[NamesProgram] = c.DetachProgram(NamesProgram)
		c.Close()
	}
	var p *ebpf.Program
	if on {
		p = l.Programs[NamesProgram]
	}
	return setCall(l.Maps[CallsOfNames], 0, NamesProgram, p)
}

// teacherOwn are the maps that a copy of NamesProgram has of its own: working memory, as the run of
// a program in a process may be interrupted by one on a packet; what it counts; and nobody to whom
// it hands anything.
var teacherOwn = []string{"weir_name_work", "weir_name_counts", "weir_name_reader", "weir_name_handed"}

// LoadTeacher loads a copy of NamesProgram, by which the agent notes what it read of answers that
// the program cannot read.
func LoadTeacher(l *Collection) (*Programs, error) {
	return loadPrograms(l, teacherOwn, NamesProgram)
}
