// SPDX-License-Identifier: Apache-2.0

package v1

// Bounds of a Problem, in characters, as the definition of NodeStatus has them: what tenants write
// into their objects is quoted there, and a NodeStatus that is too large is not stored at all.
const (
	MaxProblemObject  = 512 // a kind, a namespace and a name, or several names
	MaxProblemField   = 256
	MaxProblemValue   = 256
	MaxProblemMessage = 1000
)

// Clip returns the problem within its bounds. What is cut off is replaced by "…". The result does
// not refer to the memory of longer texts.
func (p Problem) Clip() Problem {
	return Problem{Object: Clip(p.Object, MaxProblemObject), Field: Clip(p.Field, MaxProblemField), Value: Clip(p.Value, MaxProblemValue),
		Message: Clip(p.Message, MaxProblemMessage), Action: Clip(p.Action, MaxProblemMessage)}
}

// ReasonNotInForce is the reason of Events about objects of which something has no effect.
const ReasonNotInForce = "NotInForce"

// WithoutObject says what is wrong in one line, for an Event about the object itself.
func (p Problem) WithoutObject() string { return p.Field + " " + p.Value + ": " + p.Message }

// Clip returns s with at most n characters; "…" is the last one where some were cut off.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
