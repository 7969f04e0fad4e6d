// SPDX-License-Identifier: Apache-2.0

package reason

// Quiet reports whether nobody has to look at drops for the reason: every pod sends such packets by
// itself, and nothing is amiss.
func (r Reason) Quiet() bool { return r == FamilyLink }
