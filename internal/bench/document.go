// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"os"
	"strings"
)

// EndMark is the line of a document up to which Rewrite writes.
const EndMark = "<!-- until here -->"

// BeginMark is the line of a document after which Rewrite writes for a program.
func BeginMark(program string) string {
	return "<!-- what follows is written by " + program + " -->"
}

// Rewrite puts a text into a Markdown file in the place of what is between the marks of a program.
func Rewrite(path, program, text string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin := BeginMark(program)
	before, rest, ok := strings.Cut(string(raw), begin)
	_, after, ok2 := strings.Cut(rest, EndMark)
	if !ok || !ok2 {
		return fmt.Errorf("%s lacks the line %q, or after it %q", path, begin, EndMark)
	}
	return os.WriteFile(path, []byte(before+begin+"\n\n"+text+"\n"+EndMark+after), 0o644)
}
