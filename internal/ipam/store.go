// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// store is the directory of allocations: one file per taken address, named by the address. A file
// is made complete under another name and then linked, so it is either there as a whole or not at
// all, and link(2) fails when somebody else has the address.
type store struct{ dir string }

const (
	tempPrefix = ".tmp-"
	bootFile   = ".boot"
	blocksFile = ".blocks"
	maxRecord  = 64 << 10
)

// step is called between the steps that a crash may separate; tests kill the process there.
var step = func(string) {}

// openStore goes on without the directory where the disk takes none: the node gives no address
// then, and pods that run go on.
func openStore(dir string) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil && !full(err) {
		return nil, fmt.Errorf("make the address state directory %s: %w", dir, explain(err))
	}
	s := &store{dir: dir}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the address state directory %s: %w", dir, err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			os.Remove(filepath.Join(dir, e.Name())) // left by a crash before the link: never given out
		}
	}
	return s, nil
}

func (s *store) path(a netip.Addr) string { return filepath.Join(s.dir, a.String()) }

// encode renders a record: a line of JSON, then the SHA-256 of that line.
func encode(r Record) ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	return append(body, []byte("\nsha256:"+hex.EncodeToString(sum[:])+"\n")...), nil
}

func decode(data []byte, want netip.Addr) (Record, error) {
	body, rest, ok := bytes.Cut(data, []byte("\n"))
	sum := sha256.Sum256(body)
	if !ok || string(rest) != "sha256:"+hex.EncodeToString(sum[:])+"\n" {
		return Record{}, errors.New("the checksum does not match: the file is truncated or was changed")
	}
	var r Record
	if err := json.Unmarshal(body, &r); err != nil {
		return Record{}, fmt.Errorf("the content is not a record: %w", err)
	}
	if r.Address != want {
		return Record{}, fmt.Errorf("the content is about %s", r.Address)
	}
	return r, nil
}

// writeTemp writes a complete file under a name that no reader looks at.
func (s *store) writeTemp(data []byte) (name string, err error) {
	var id [8]byte
	rand.Read(id[:])
	name = filepath.Join(s.dir, tempPrefix+hex.EncodeToString(id[:]))
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrNotExist) { // somebody removed the directory
		if err = os.MkdirAll(s.dir, 0o700); err == nil {
			f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		}
	}
	if err != nil {
		return "", explain(err)
	}
	_, err = f.Write(data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		os.Remove(name)
		return "", explain(err)
	}
	return name, nil
}

// create takes the record's address. fs.ErrExist: it is taken.
func (s *store) create(r Record) error {
	data, err := encode(r)
	if err != nil {
		return fmt.Errorf("encode the record of %s: %w", r.Address, err)
	}
	step("create:before-temp")
	tmp, err := s.writeTemp(data)
	if err != nil {
		return fmt.Errorf("write the allocation of %s below %s: %w", r.Address, s.dir, err)
	}
	step("create:before-link")
	err = os.Link(tmp, s.path(r.Address))
	step("create:after-link")
	os.Remove(tmp)
	step("create:after-unlink")
	if err != nil {
		if errors.Is(err, fs.ErrExist) {
			return err
		}
		return fmt.Errorf("write the allocation of %s below %s: %w", r.Address, s.dir, explain(err))
	}
	return nil
}

// replace writes the record over whatever its file holds.
func (s *store) replace(r Record) error {
	data, err := encode(r)
	if err != nil {
		return fmt.Errorf("encode the record of %s: %w", r.Address, err)
	}
	return s.put(r.Address.String(), data)
}

func (s *store) put(name string, data []byte) error {
	tmp, err := s.writeTemp(data)
	if err == nil {
		step("replace:before-rename")
		if err = os.Rename(tmp, filepath.Join(s.dir, name)); err != nil {
			os.Remove(tmp)
			err = explain(err)
		}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Join(s.dir, name), err)
	}
	return nil
}

// remove frees an address; one that is free already is fine.
func (s *store) remove(a netip.Addr) error {
	step("remove:before-unlink")
	err := os.Remove(s.path(a))
	step("remove:after-unlink")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the allocation of %s: %w", a, err)
	}
	return nil
}

// read returns the record of an address. fs.ErrNotExist: it is free. Any other error: it is taken,
// and nobody knows by whom.
func (s *store) read(a netip.Addr) (Record, error) {
	f, err := os.Open(s.path(a))
	if err != nil {
		return Record{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Record{}, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxRecord {
		return Record{}, errors.New("it is not a file that Weir wrote")
	}
	data := make([]byte, info.Size())
	if n, err := f.Read(data); err != nil && len(data) > 0 || n < len(data) {
		return Record{}, fmt.Errorf("read %d of %d bytes: %w", n, len(data), err)
	}
	return decode(data, a)
}

// list returns all records, and for each address whose file cannot be read the reason.
func (s *store) list() (good map[netip.Addr]Record, bad map[netip.Addr]error, strange []string, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil, fmt.Errorf("read the address state directory %s: %w", s.dir, err)
	}
	good, bad = map[netip.Addr]Record{}, map[netip.Addr]error{}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") {
			continue
		}
		a, err := netip.ParseAddr(name)
		if err != nil || a.String() != name {
			strange = append(strange, name)
			continue
		}
		r, err := s.read(a)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			bad[a] = err
		default:
			good[a] = r
		}
	}
	return good, bad, strange, nil
}

// broken is the problem of a file that cannot be read.
func (s *store) broken(addr netip.Addr, why error) Problem {
	return Problem{Object: "file " + s.path(addr), Message: fmt.Sprintf("%v; address %s stays taken", why, addr),
		Action: fmt.Sprintf("make sure that no pod of this node has the address, then run on the node: weir ipam release %s", addr)}
}

func (s *store) strange(name string) Problem {
	return Problem{Object: "file " + filepath.Join(s.dir, name), Message: "is not an allocation of Weir", Action: "move it away"}
}

// bootID names this start of the kernel.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// rebooted reports whether the machine was started anew since the directory was last opened: no
// interface of an earlier allocation can exist then.
func (s *store) rebooted() bool {
	b, err := os.ReadFile(filepath.Join(s.dir, bootFile))
	id := bootID()
	return err == nil && id != "" && strings.TrimSpace(string(b)) != id
}

func (s *store) noteBoot() error {
	if b, err := os.ReadFile(filepath.Join(s.dir, bootFile)); err == nil && strings.TrimSpace(string(b)) == bootID() {
		return nil
	}
	return s.put(bootFile, []byte(bootID()+"\n"))
}

// full reports whether a disk takes no more.
func full(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS)
}

// explain adds what to do to the errors of a disk that does not take more.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w: the disk is full, free some space (or inodes) on it", err)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: mount it writable, or choose another state directory", err)
	}
	return err
}
