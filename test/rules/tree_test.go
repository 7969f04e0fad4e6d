// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// module is the path of the main module, as go.mod has it.
const module = "github.com/weir-net/weir"

// root is the repository, seen from this folder.
const root = "../.."

// pkg is a package of the main module.
type pkg struct {
	Path    string `json:"ImportPath"` // without the module
	Imports []string
}

// packages asks the go command for the packages of the main module, once parsed, not built.
func packages(t *testing.T) map[string]*pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Imports", "./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	all := map[string]*pkg{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &pkg{}
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("what go list writes: %v", err)
		}
		p.Path = strings.TrimPrefix(p.Path, module+"/")
		for i, imported := range p.Imports {
			p.Imports[i] = strings.TrimPrefix(imported, module+"/")
		}
		all[p.Path] = p
	}
	if len(all) < 4 {
		t.Fatalf("go list found only %d packages", len(all))
	}
	return all
}

// goFile is a Go source file that a person wrote.
type goFile struct {
	path    string // from the root
	name    string // of its package
	comment bool   // has a package comment
	lines   int
}

// skipped are folders that hold no source of ours.
var skipped = []string{"testdata", "node_modules", "vendor", "out", "bin", "dist"}

// goFiles reads the package clauses of the whole repository, other modules included.
func goFiles(t *testing.T) []goFile {
	t.Helper()
	var all []goFile
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // gone while we look, as temporary files are
		case err != nil:
			return err
		case d.IsDir() && path != root && (slices.Contains(skipped, d.Name()) || strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_")):
			return filepath.SkipDir
		case d.IsDir() || !d.Type().IsRegular() || filepath.Ext(path) != ".go":
			return nil
		}
		f, keep, err := readGoFile(path)
		if keep {
			all = append(all, f)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func readGoFile(path string) (f goFile, keep bool, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return f, false, err
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.PackageClauseOnly|parser.ParseComments)
	if err != nil {
		return f, false, err
	}
	rel, err := filepath.Rel(root, path)
	if err != nil {
		return f, false, err
	}
	f = goFile{path: rel, name: file.Name.Name, comment: file.Doc != nil && strings.TrimSpace(file.Doc.Text()) != ""}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		f.lines++
	}
	return f, !ast.IsGenerated(file), nil
}
