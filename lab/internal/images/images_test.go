// SPDX-License-Identifier: Apache-2.0

package images

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func headers(t *testing.T, r io.Reader) []*tar.Header {
	t.Helper()
	var out []*tar.Header
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, h)
	}
}

func TestLayerIsOrderedAndComplete(t *testing.T) {
	entries := []entry{text("etc/nginx/nginx.conf", "x"), symlink("bin/sh", "busybox"), dir("tmp", 0o1777), text("a", "")}
	var one, two bytes.Buffer
	if err := writeLayer(&one, entries); err != nil {
		t.Fatal(err)
	}
	entries[0], entries[3] = entries[3], entries[0]
	if err := writeLayer(&two, entries); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("the layer depends on the order in which its files were named")
	}
	var got []string
	for _, h := range headers(t, &one) {
		got = append(got, h.Name)
		switch h.Name {
		case "tmp/":
			if h.Mode != 0o1777 || h.Typeflag != tar.TypeDir {
				t.Errorf("tmp/ is %c with mode %o", h.Typeflag, h.Mode)
			}
		case "bin/sh":
			if h.Typeflag != tar.TypeSymlink || h.Linkname != "busybox" {
				t.Errorf("bin/sh is %c to %q", h.Typeflag, h.Linkname)
			}
		}
	}
	if want := "a bin/ bin/sh etc/ etc/nginx/ etc/nginx/nginx.conf tmp/"; strings.Join(got, " ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, " "), want)
	}
}

func TestTree(t *testing.T) {
	root := t.TempDir()
	write := func(path, content string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	write("usr/bin/a", "aaa")
	write("usr/share/doc/big", "documentation")
	if err := os.Link(filepath.Join(root, "usr/bin/a"), filepath.Join(root, "usr/bin/b")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("usr/bin", filepath.Join(root, "bin")); err != nil {
		t.Fatal(err)
	}
	layer := filepath.Join(t.TempDir(), "l.tar")
	f, err := os.Create(layer)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := writeTree(f, root, map[string]bool{"usr/share/doc": true}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	for _, h := range headers(t, f) {
		kinds[h.Name] = string(h.Typeflag) + h.Linkname
	}
	want := map[string]string{"bin": "2usr/bin", "usr/": "5", "usr/bin/": "5", "usr/bin/a": "0", "usr/bin/b": "1usr/bin/a", "usr/share/": "5", "usr/share/doc/": "5"}
	for path, kind := range want {
		if kinds[path] != kind {
			t.Errorf("%s: got %q, want %q", path, kinds[path], kind)
		}
	}
	if len(kinds) != len(want) {
		t.Errorf("got %v, want %v", kinds, want)
	}
	if got, err := readFile(layer, "usr/bin/a"); err != nil || got != "aaa" {
		t.Errorf("read back %q, %v", got, err)
	}
	if _, err := readFile(layer, "usr/bin/none"); err == nil {
		t.Error("read a file that is not there")
	}
}

func TestWeirImage(t *testing.T) {
	bin := t.TempDir()
	for _, p := range []string{"weir", "weir-agent", "weir-lab"} {
		if err := os.WriteFile(filepath.Join(bin, p), []byte("#!"+p), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(bin, "weir.txt"), []byte("not a program"), 0o644); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "weir.tar")
	if err := Bench(bin, out); err == nil {
		t.Error("made an image of the benchmarks without their program")
	}
	if err := Weir(bin, out); err != nil {
		t.Fatal(err)
	}
	// The pods of weir bench run from it too.
	bench, err := name.NewTag(BenchImage)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tarball.ImageFromPath(out, &bench); err != nil {
		t.Errorf("the image has not the name of the benchmarks' one: %v", err)
	}
	tag, err := name.NewTag(WeirImage)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(out, &tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		t.Errorf("the archive is not a valid image: %v", err)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var programs []string
	for _, h := range headers(t, r) {
		if strings.HasPrefix(h.Name, "weir") || h.Name == "nft" {
			programs = append(programs, h.Name)
		}
	}
	if got := strings.Join(programs, " "); got != "nft weir weir-agent" {
		t.Errorf("the image holds %s", got)
	}
	if err := Weir(t.TempDir(), out); err == nil {
		t.Error("an image was made of an empty folder")
	}
}

// The image of the benchmarks holds their program, and nothing else that runs.
func TestBenchImage(t *testing.T) {
	bin, out := t.TempDir(), filepath.Join(t.TempDir(), "bench.tar")
	for _, p := range []string{"weir-agent", benchProgram} {
		if err := os.WriteFile(filepath.Join(bin, p), []byte("#!"+p), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := Bench(bin, out); err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(out, nil)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, h := range headers(t, r) {
		if h.Typeflag == tar.TypeReg && h.Mode&0o111 != 0 && h.Name != benchProgram || h.Name == "nft" {
			t.Errorf("the image holds %s", h.Name)
		}
	}
}

func TestMirror(t *testing.T) {
	for sources, want := range map[string]string{
		"Types: deb\nURIs: http://other.example/x\nSuites: nodistro\nComponents: main\n\nTypes: deb\n# comment\nURIs: http://deb.example/debian\nSuites: bookworm bookworm-updates\n": "http://deb.example/debian",
		"Types: deb\nURIs: http://deb.example/security\nSuites: bookworm-security\n":                                                                                                  "",
		"deb http://a.example/x trixie main\ndeb [signed-by=/k arch=amd64] http://b.example/debian bookworm main\n":                                                                   "http://b.example/debian",
		"# deb http://a.example/x bookworm main\n": "",
		"": "",
	} {
		if got := mirrorOf(sources); got != want {
			t.Errorf("%s\ngot %q, want %q", sources, got, want)
		}
	}
}

func TestClone(t *testing.T) {
	seed, to := t.TempDir(), filepath.Join(t.TempDir(), "clone")
	if err := os.MkdirAll(filepath.Join(seed, "d"), 0o711); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"d/blob", "d/meta.db"} {
		if err := os.WriteFile(filepath.Join(seed, f), []byte("seed"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("blob", filepath.Join(seed, "d/link")); err != nil {
		t.Fatal(err)
	}
	if err := Clone(seed, to); err != nil {
		t.Fatal(err)
	}
	// A node writes into its databases: the seed must not see it.
	if err := os.WriteFile(filepath.Join(to, "d/meta.db"), []byte("node"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(seed, "d/meta.db")); err != nil || string(got) != "seed" {
		t.Errorf("the seed's database became %q, %v", got, err)
	}
	if got, err := os.ReadFile(filepath.Join(to, "d/link")); err != nil || string(got) != "seed" {
		t.Errorf("through the link: %q, %v", got, err)
	}
	a, errA := os.Stat(filepath.Join(seed, "d/blob"))
	b, errB := os.Stat(filepath.Join(to, "d/blob"))
	if errA != nil || errB != nil || !os.SameFile(a, b) {
		t.Error("contents are not shared with the seed")
	}
	if st, err := os.Stat(filepath.Join(to, "d")); err != nil || st.Mode().Perm() != 0o711 {
		t.Errorf("folder: %v, %v", st.Mode(), err)
	}
}
