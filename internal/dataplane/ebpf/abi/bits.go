// SPDX-License-Identifier: Apache-2.0

package abi

// FlagIf returns a flag that is set when on, and otherwise 0.
func FlagIf(on bool, flag uint32) uint32 {
	if on {
		return flag
	}
	return 0
}
