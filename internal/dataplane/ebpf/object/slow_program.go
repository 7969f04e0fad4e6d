// SPDX-License-Identifier: Apache-2.0

package object

// SlowProgram does all but the fast path for the hooks that do not have it themselves: the egress
// of uplinks and weir0, and what unpacks IP in IP. CallsOfSlow is the map by which these call it,
// whichever agent loaded them.
const (
	SlowProgram = "weir_slow"
	CallsOfSlow = "weir_slow_calls"
)

// CallSlow makes the programs of l's family call its SlowProgram, and reports whether they did
// otherwise until now.
func (l *Collection) CallSlow() (changed bool, err error) {
	return setCall(l.Maps[CallsOfSlow], 0, SlowProgram, l.Programs[SlowProgram])
}
