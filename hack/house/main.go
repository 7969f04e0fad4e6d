// SPDX-License-Identifier: Apache-2.0

// Command house measures the tree: packages with their files and lines, what is above the limits,
// import rules that do not hold, and seconds of make check and of the parts of the last make test:
//
//	go run ./hack/house [-out out/house.json] [-check=false]
//
// Counted is Go that a person wrote. Limits are those of CONTRIBUTING.md.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-net/weir/test/rules"
)

const (
	mostFiles     = 20   // of a package, without tests
	mostLines     = 4000 // of a package, without tests
	mostFileLines = 500
	mostTestLines = 700
)

type pkg struct {
	Path      string `json:"path"`
	Files     int    `json:"files"`
	Lines     int    `json:"lines"`
	TestLines int    `json:"testLines"`
}

type file struct {
	Path  string `json:"path"`
	Lines int    `json:"lines"`
}

type report struct {
	Packages      []*pkg           `json:"packages"`
	LargePackages []string         `json:"largePackages"`
	LongFiles     []file           `json:"longFiles"`
	ImportRules   string           `json:"importRules"` // "hold", or what the test of them says
	Seconds       map[string]int64 `json:"seconds"`     // of make check, and of each part of the last make test
}

func main() {
	out := flag.String("out", "out/house.json", "where to write the result")
	check := flag.Bool("check", true, "run make check, and measure it")
	flag.Parse()
	if err := run(*out, *check); err != nil {
		fmt.Fprintln(os.Stderr, "house:", err)
		os.Exit(1)
	}
}

func run(out string, check bool) error {
	r := report{Seconds: map[string]int64{}}
	if err := r.count("."); err != nil {
		return err
	}
	if err := r.measure(check); err != nil {
		return err
	}
	for _, p := range r.Packages {
		fmt.Printf("%-50s %3d files %6d lines, tests %6d\n", p.Path, p.Files, p.Lines, p.TestLines)
	}
	fmt.Printf("packages above %d files or %d lines: %s\n", mostFiles, mostLines, orNone(r.LargePackages))
	var long []string
	for _, f := range r.LongFiles {
		long = append(long, fmt.Sprintf("%s (%d)", f.Path, f.Lines))
	}
	fmt.Printf("files above %d lines, tests above %d: %s\n", mostFileLines, mostTestLines, orNone(long))
	fmt.Printf("import rules: %s\n", r.ImportRules)
	for _, name := range slices.Sorted(maps.Keys(r.Seconds)) {
		fmt.Printf("%-16s %5d s\n", name, r.Seconds[name])
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	fmt.Println("house: written to", out)
	return os.WriteFile(out, append(text, '\n'), 0o644)
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

// count reads the sources below root.
func (r *report) count(root string) error {
	packages := map[string]*pkg{}
	err := rules.GoFiles(root, func(path string, text []byte) error {
		lines, test := bytes.Count(text, []byte("\n")), strings.HasSuffix(path, "_test.go")
		p := packages[filepath.Dir(path)]
		if p == nil {
			p = &pkg{Path: filepath.Dir(path)}
			packages[p.Path] = p
		}
		most := mostFileLines
		if test {
			most = mostTestLines
			p.TestLines += lines
		} else {
			p.Files++
			p.Lines += lines
		}
		if lines > most {
			r.LongFiles = append(r.LongFiles, file{path, lines})
		}
		return nil
	})
	for _, p := range packages {
		r.Packages = append(r.Packages, p)
		if p.Files > mostFiles || p.Lines > mostLines {
			r.LargePackages = append(r.LargePackages, p.Path)
		}
	}
	slices.SortFunc(r.Packages, func(a, b *pkg) int { return strings.Compare(a.Path, b.Path) })
	slices.Sort(r.LargePackages)
	return err
}

// measure asks the test of import rules, runs make check, and reads what hack/parts.sh left.
func (r *report) measure(check bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r.ImportRules = "hold"
	text, err := exec.CommandContext(ctx, "go", "test", "-count", "1", "-run", "Import", "./test/rules").CombinedOutput()
	if err != nil {
		r.ImportRules = strings.TrimSpace(string(text))
	}
	if check {
		fmt.Println("house: make check …")
		began := time.Now()
		if text, err := exec.CommandContext(ctx, "make", "check").CombinedOutput(); err != nil {
			return fmt.Errorf("make check: %w\n%s", err, text)
		}
		r.Seconds["check"] = int64(time.Since(began).Seconds())
	}
	parts, err := os.Open("out/parts/seconds")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parts.Close()
	lines := bufio.NewScanner(parts)
	for lines.Scan() {
		if name, n, ok := strings.Cut(lines.Text(), " "); ok {
			seconds, err := strconv.ParseInt(n, 10, 64)
			if err != nil {
				return fmt.Errorf("out/parts/seconds: %w", err)
			}
			r.Seconds["test: "+name] = seconds
		}
	}
	return lines.Err()
}
