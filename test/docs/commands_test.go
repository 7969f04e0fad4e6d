// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// cliPage is generated from the programs themselves, so what it has exists.
const cliPage = "docs/reference/cli.md"

// command is one of a program, by its words: "weir bench run".
type command struct {
	flags map[string]bool // "--output", "-o"
	subs  bool            // it has commands below it
	args  bool            // it takes arguments
	any   bool            // it hands its arguments on
}

var (
	commandHeading = regexp.MustCompile(`^##+ (weir.*)$`)
	flagLine       = regexp.MustCompile(`^ {2,8}(?:(-\w), )?(--?[\w-]+)`)
)

// logPrefix is how lines of the kernel's log begin, which no command prints.
const logPrefix = "weir deny|allow"

// commands reads cliPage.
func commands(t *testing.T, lines []line) map[string]*command {
	t.Helper()
	all := map[string]*command{}
	at, inFlags, inUsage := (*command)(nil), false, false
	for _, l := range lines {
		if m := commandHeading.FindStringSubmatch(l.text); m != nil && l.fence == "" {
			at = &command{flags: map[string]bool{}}
			all[m[1]], inFlags = at, false
			continue
		}
		switch {
		case at == nil:
		case l.fence == "":
			at.any = at.any || strings.HasPrefix(l.text, "Hands over") || strings.HasPrefix(l.text, "Runs kubectl")
		case l.text == "Usage:":
			inUsage = true
		case strings.HasSuffix(l.text, "lags:") || strings.HasPrefix(l.text, "Usage of"):
			inFlags = true
		case l.text == "":
			inFlags, inUsage = false, false
		case strings.HasSuffix(l.text, ":"):
			inFlags = false
		case inUsage:
			words := strings.TrimSuffix(strings.TrimSpace(l.text), " [flags]")
			at.subs = at.subs || strings.HasSuffix(words, "[command]")
			for _, w := range strings.Fields(words) {
				at.args = at.args || strings.ToUpper(w) == w && strings.ContainsAny(w, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
			}
		case inFlags:
			if m := flagLine.FindStringSubmatch(l.text); m != nil {
				at.flags[m[1]], at.flags[m[2]] = true, true
			}
		}
	}
	if len(all) < 20 || !all["weir install"].flags["--image"] || !all["weir get"].args || !all["weir"].subs {
		t.Fatalf("%s is not read: %d commands", cliPage, len(all))
	}
	return all
}

// targets returns those of the Makefile.
func targets(t *testing.T) map[string]bool {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`).FindAllStringSubmatch(string(raw), -1) {
		names[m[1]] = true
	}
	return names
}

var span = regexp.MustCompile("`([^`]+)`")

// named returns the commands that documents name: lines of fenced code, and code in the text.
func named(lines []line) (found []line) {
	joined := line{}
	for _, l := range lines {
		if l.fence == "" {
			for _, m := range span.FindAllStringSubmatch(l.text, -1) {
				found = append(found, line{number: l.number, text: m[1]})
			}
			continue
		}
		if joined.text != "" {
			l = line{number: joined.number, text: joined.text + " " + l.text, fence: l.fence}
		}
		if rest, more := strings.CutSuffix(l.text, `\`); more {
			joined = line{number: l.number, text: rest, fence: l.fence}
			continue
		}
		joined = line{}
		found = append(found, l)
	}
	return found
}

// words splits a command as a shell would, as far as documents need it, and drops what follows it.
func words(text string) (all []string) {
	text, _, _ = strings.Cut(strings.TrimPrefix(text, "$ "), " #")
	for _, end := range []string{" | ", " && ", "; ", " > ", " 2>"} {
		text, _, _ = strings.Cut(text, end)
	}
	quote := rune(0)
	fields := strings.FieldsFunc(text, func(r rune) bool {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote = r
		case quote == 0 && (r == ' ' || r == '\t'):
			return true
		}
		return false
	})
	return append(all, fields...)
}

// placeholder reports whether a word is to be replaced by the reader.
func placeholder(word string) bool {
	return strings.ContainsAny(word, "<>…|[]()") || strings.ToLower(word) != word
}

func TestCommandsExist(t *testing.T) {
	t.Parallel()
	all := documents(t)
	known, make := commands(t, all[cliPage]), targets(t)
	checked := 0
	for path, lines := range all {
		if path == cliPage || strings.HasPrefix(path, "docs/results/log/") {
			continue // the log is as it was written
		}
		for _, l := range named(lines) {
			w := words(l.text)
			if len(w) < 2 || strings.HasPrefix(l.text, logPrefix) {
				continue
			}
			switch program := strings.TrimPrefix(strings.TrimPrefix(w[0], "bin/"), "/"); program {
			case "make":
				for _, word := range w[1:] {
					if strings.HasPrefix(word, "-") || strings.Contains(word, "=") || placeholder(word) {
						continue
					}
					if checked++; !make[word] {
						t.Errorf("%s:%d: %q: the Makefile has no target %s", path, l.number, l.text, word)
					}
				}
			case "weir", "weir-lab", "weir-agent":
				checked++
				if problem := check(known, program, w[1:]); problem != "" {
					t.Errorf("%s:%d: %q: %s", path, l.number, l.text, problem)
				}
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d commands are found", checked)
	}
}

// check follows the words of a command to its flags, and says what does not exist.
func check(known map[string]*command, path string, words []string) string {
	if path == "weir" && words[0] == "lab" {
		if len(words) == 1 || placeholder(words[1]) {
			return ""
		}
		return check(known, "weir-lab", words[1:])
	}
	root := known[path]
	for i, word := range words {
		at := known[path]
		switch {
		case word == "--" || at.any:
			return ""
		case strings.HasPrefix(word, "-"):
			name, _, _ := strings.Cut(word, "=")
			if !at.flags[name] && !root.flags[name] {
				return path + " has no flag " + name
			}
		case known[path+" "+word] != nil:
			path += " " + word
		case at.args:
			// An argument, and those after it; their flags are still this command's.
		case at.subs && strings.Contains(word, "|"):
			for _, sub := range strings.Split(word, "|") {
				if known[path+" "+sub] == nil {
					return path + " has no command " + sub
				}
			}
			return ""
		case at.subs && !placeholder(word) && (i == 0 || !strings.HasPrefix(words[i-1], "-")):
			return path + " has no command " + word
		}
	}
	return ""
}
