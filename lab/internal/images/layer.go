// SPDX-License-Identifier: Apache-2.0

package images

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"
)

// created is the date of everything that has none of its own, so that the same
// contents always make the same layer.
var created = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// entry is one file of a layer.
type entry struct {
	path string // without a leading slash; a folder's ends in one
	mode int64
	// One of them, or none for an empty file or a folder.
	content string
	from    string // a file of the machine
	link    string // target of a symbolic link
}

func dir(path string, mode int64) entry { return entry{path: path + "/", mode: mode} }
func program(path, from string) entry   { return entry{path: path, mode: 0o755, from: from} }
func text(path, content string) entry   { return entry{path: path, mode: 0o644, content: content} }
func script(path, content string) entry { return entry{path: path, mode: 0o755, content: content} }
func symlink(path, target string) entry { return entry{path: path, mode: 0o777, link: target} }
func fileFrom(path, from string) entry  { return entry{path: path, mode: 0o644, from: from} }

// writeLayer writes entries as a tar stream, in the order of their paths and each
// after the folders that it is in.
func writeLayer(w io.Writer, entries []entry) error {
	byPath := map[string]entry{}
	for _, e := range entries {
		for i, c := range e.path {
			if c != '/' || i == len(e.path)-1 {
				continue
			}
			if _, ok := byPath[e.path[:i+1]]; !ok {
				byPath[e.path[:i+1]] = dir(e.path[:i], 0o755)
			}
		}
		byPath[e.path] = e
	}
	var paths []string
	for p := range byPath {
		paths = append(paths, p)
	}
	sort.Strings(paths)
	t := tar.NewWriter(w)
	for _, p := range paths {
		if err := writeEntry(t, byPath[p]); err != nil {
			return fmt.Errorf("write %s into a layer: %w", p, err)
		}
	}
	if err := t.Close(); err != nil {
		return fmt.Errorf("finish a layer: %w", err)
	}
	return nil
}

func writeEntry(t *tar.Writer, e entry) error {
	h := &tar.Header{Name: e.path, Mode: e.mode, ModTime: created, Typeflag: tar.TypeReg, Size: int64(len(e.content))}
	var body io.Reader = strings.NewReader(e.content)
	switch {
	case strings.HasSuffix(e.path, "/"):
		h.Typeflag = tar.TypeDir
	case e.link != "":
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
	case e.from != "":
		f, err := os.Open(e.from)
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return err
		}
		h.Size, body = st.Size(), f
	}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(t, body)
	return err
}

// writeTree writes a folder of the machine as a tar stream. Folders in skip, by
// path below root, stay empty; devices and sockets are left out.
func writeTree(w io.Writer, root string, skip map[string]bool) error {
	t := tar.NewWriter(w)
	links := map[uint64]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil || rel == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if err := writeInode(t, path, rel, info, links); err != nil {
			return err
		}
		if d.IsDir() && skip[rel] {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write %s as a layer: %w", root, err)
	}
	if err := t.Close(); err != nil {
		return fmt.Errorf("finish the layer of %s: %w", root, err)
	}
	return nil
}

func writeInode(t *tar.Writer, path, rel string, info fs.FileInfo, links map[uint64]string) error {
	if !info.Mode().IsRegular() && !info.IsDir() && info.Mode()&fs.ModeSymlink == 0 {
		return nil
	}
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		var err error
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name, h.Uname, h.Gname = rel, "", ""
	h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
	if info.IsDir() {
		h.Name += "/"
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode().IsRegular() && st.Nlink > 1 {
		if first, ok := links[st.Ino]; ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
		} else {
			links[st.Ino] = rel
		}
	}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(t, f)
	return err
}

// readFile reads one file out of a layer on disk.
func readFile(layer, path string) (string, error) {
	f, err := os.Open(layer)
	if err != nil {
		return "", err
	}
	defer f.Close()
	t := tar.NewReader(f)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return "", fmt.Errorf("layer %s has no %s", layer, path)
		}
		if err != nil {
			return "", fmt.Errorf("read layer %s: %w", layer, err)
		}
		if h.Name == path {
			b, err := io.ReadAll(t)
			return string(b), err
		}
	}
}
