// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
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

// goFiles reads the package clauses of the whole repository, other modules included.
func goFiles(t *testing.T) []goFile {
	t.Helper()
	var all []goFile
	err := GoFiles(root, func(path string, text []byte) error {
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		f := goFile{path: path, name: file.Name.Name, comment: file.Doc != nil && strings.TrimSpace(file.Doc.Text()) != ""}
		for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
			f.lines++
		}
		all = append(all, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
