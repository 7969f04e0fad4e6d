// SPDX-License-Identifier: Apache-2.0

package config

import "testing"

// FuzzResolve gives a field any text, in the environment and in a FelixConfiguration: it is in
// force or a problem names it, and what is in force before a restart is in force after it.
func FuzzResolve(f *testing.F) {
	for i, text := range []string{"true", "-1", "20000:29999", "9999999999", "10.0.0.0/8,::/0", "10.0", "1h", "[", "Strict", "\x00", "tcp:10.0.0.0/8:22"} {
		f.Add(uint8(i), text, true)
		f.Add(uint8(i*7), text, false)
	}
	f.Fuzz(func(t *testing.T, which uint8, text string, env bool) {
		fd := &fields[int(which)%len(fields)]
		var environ []string
		if env {
			environ = []string{"FELIX_" + fd.env + "=" + text}
		}
		r := New("n", environ, nil)
		spec := map[string]any{}
		if !env {
			spec[fd.name] = text
		}
		r.Set("default", spec)
		got := r.Resolve()
		if s := got.Settings; s.SNATPortLast < s.SNATPortFirst {
			t.Errorf("source ports %d..%d", s.SNATPortFirst, s.SNATPortLast)
		}
		again := New("n", environ, r.LastGood())
		again.AtStart()
		again.Set("default", spec)
		if n := len(again.Resolve().Problems); n != len(got.Problems) {
			t.Errorf("%s = %q: %d problems, %d after a restart", fd.name, text, len(got.Problems), n)
		}
	})
}
