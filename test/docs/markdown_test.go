// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is the repository, seen from this folder.
const root = "../.."

// line is one line of a document, outside of fenced code or inside.
type line struct {
	number int // from 1
	text   string
	fence  string // the language of the fenced block that the line is in, "text" where it names none; empty = outside
}

// documents returns the lines of every Markdown file of the repository, by its path from the root.
func documents(t *testing.T) map[string][]line {
	t.Helper()
	all := map[string][]line{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if rel == ".git" || rel == "out" || rel == "bin" {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		all[rel] = linesOf(string(raw))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("only %d documents are found", len(all))
	}
	return all
}

func linesOf(text string) (lines []line) {
	fence := ""
	for i, s := range strings.Split(text, "\n") {
		if marks, ok := strings.CutPrefix(strings.TrimSpace(s), "```"); ok {
			switch {
			case fence != "":
				fence = ""
			case marks == "":
				fence = "text"
			default:
				fence = marks
			}
			continue
		}
		lines = append(lines, line{number: i + 1, text: s, fence: fence})
	}
	return lines
}

var (
	heading  = regexp.MustCompile(`^#+ +(.*)$`)
	link     = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	linkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	dropped  = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// anchors returns the names that a forge gives to the headings of a document.
func anchors(lines []line) map[string]bool {
	names := map[string]bool{}
	for _, l := range lines {
		if m := heading.FindStringSubmatch(l.text); m != nil && l.fence == "" {
			name := strings.ToLower(linkText.ReplaceAllString(m[1], "$1"))
			names[strings.ReplaceAll(dropped.ReplaceAllString(name, ""), " ", "-")] = true
		}
	}
	return names
}

func TestLinks(t *testing.T) {
	t.Parallel()
	all := documents(t)
	for path, lines := range all {
		for _, l := range lines {
			if l.fence != "" {
				continue
			}
			for _, m := range link.FindAllStringSubmatch(l.text, -1) {
				if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
					continue
				}
				file, anchor, _ := strings.Cut(m[1], "#")
				target := path
				if file != "" {
					target = filepath.Join(filepath.Dir(path), file)
				}
				if _, err := os.Stat(filepath.Join(root, target)); err != nil {
					t.Errorf("%s:%d: %s leads to nothing", path, l.number, m[1])
				} else if anchor != "" && !anchors(all[target])[anchor] {
					t.Errorf("%s:%d: %s has no heading %q", path, l.number, target, anchor)
				}
			}
		}
	}
}

// TestEveryPageIsListed holds that a reader who begins at docs/README.md finds every page.
func TestEveryPageIsListed(t *testing.T) {
	t.Parallel()
	all := documents(t)
	listed := map[string]bool{"docs/README.md": true}
	for _, l := range all["docs/README.md"] {
		for _, m := range link.FindAllStringSubmatch(l.text, -1) {
			file, _, _ := strings.Cut(m[1], "#")
			listed[filepath.Join("docs", file)] = true
		}
	}
	for path := range all {
		if strings.HasPrefix(path, "docs/") && !listed[path] {
			t.Errorf("docs/README.md does not list %s", path)
		}
	}
}
