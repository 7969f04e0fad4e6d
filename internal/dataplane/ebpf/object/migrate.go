// SPDX-License-Identifier: Apache-2.0

package object

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
)

// Maps of another layout are pinned in a folder of that layout's number. What traffic made is
// carried over from there when an agent of another version starts, so that no open connection is
// lost: entries are taken apart by the names of their fields, which the pinned maps' own BTF says.
// A field that is new is zero, one that is gone is dropped.

// carried are the maps that are carried over, with the names of their keys' and values' structures.
var carried = []struct{ name, key, value string }{
	{"weir_flows", "flow_key", "flow_value"},
	{"weir_flows_new", "flow_key", "flow_value"},
	{"weir_affinity", "affinity_key", "affinity_value"},
}

// A carried map that changes its size is made anew, and the one before is pinned in the folder of
// layout 0, which no version has: from there its contents are carried over as from another layout.
// So it makes no difference when the agent is killed in the middle.
const resized = 0

func isCarried(name string) bool {
	return slices.ContainsFunc(carried, func(c struct{ name, key, value string }) bool { return c.name == name })
}

// aside is where the map goes that is pinned at path, of a folder of this layout.
func aside(path string) string {
	folder, name := filepath.Split(path)
	folder = filepath.Clean(folder)
	return filepath.Join(filepath.Dir(filepath.Dir(folder)), strconv.Itoa(resized), filepath.Base(folder), name)
}

func isAside(path string) bool {
	_, err := os.Stat(aside(path))
	return err == nil
}

// setAside moves the map that is pinned at path.
func setAside(path string) error {
	to := aside(path)
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return fmt.Errorf("making a folder for a map that changes its size: %w", err)
	}
	if err := os.Rename(path, to); err != nil {
		return fmt.Errorf("setting a map aside that changes its size: %w", err)
	}
	return nil
}

// CarryOver takes over what traffic made in maps of another layout, which are pinned below root;
// empty = none are. With first, before the settings are read, the epoch is taken over, too. A
// failure loses flows, and is no reason not to start.
func (l *Collection) CarryOver(root string, first bool, log *slog.Logger) {
	if root == "" {
		return
	}
	layouts, err := OldLayouts(root)
	if err != nil {
		log.Warn("looking for maps of other versions", "error", err)
	}
	for _, layout := range layouts {
		from := filepath.Join(layout, bpffs.Folders[l.Family])
		began := time.Now()
		if first {
			if err := migrateEpoch(from, l.Maps["weir_settings"]); err != nil {
				log.Warn("flows of another version may not be evaluated anew", "from", from, "error", err)
			}
		}
		n, err := migrate(from, l.Maps)
		if err != nil {
			log.Error("some flows of another version are lost", "from", from, "error", err)
		}
		log.Info("carried flows over from another version's maps", "from", from, "entries", n, "took", time.Since(began).Round(time.Millisecond))
	}
}

// migrate carries over what the maps of another layout hold and ours do not: entries that are there
// stay as they are, so it may be called again for what came meanwhile. It returns the number of
// entries that were added.
func migrate(from string, to map[string]*ebpf.Map) (int, error) {
	sum := 0
	var errs []error
	for _, c := range carried {
		n, err := migrateMap(filepath.Join(from, c.name), to[c.name], c.key, c.value)
		sum += n
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("carrying over map %s: %w", c.name, err))
		}
	}
	return sum, errors.Join(errs...)
}

// migrateEpoch makes the settings begin after the epoch of another layout's, so that every flow
// that is carried over is evaluated again. It must come before the settings are read.
func migrateEpoch(from string, to *ebpf.Map) error {
	old, layout, err := openOld(filepath.Join(from, "weir_settings"), "settings")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer old.Close()
	own, err := flowtable.StructOf(to, "settings")
	if err != nil {
		return err
	}
	value, key := make([]byte, old.ValueSize()), make([]byte, 4)
	now := make([]byte, to.ValueSize())
	if err := errors.Join(old.Lookup(key, &value), to.Lookup(key, &now)); err != nil {
		return fmt.Errorf("reading the epoch: %w", err)
	}
	was, err1 := field(layout, "epoch", value)
	is, err2 := field(own, "epoch", now)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if binary.NativeEndian.Uint32(is) > binary.NativeEndian.Uint32(was) {
		return nil
	}
	binary.NativeEndian.PutUint32(is, binary.NativeEndian.Uint32(was)+1)
	return to.Update(key, now, ebpf.UpdateAny)
}

// field returns the four bytes of a field.
func field(s *btf.Struct, name string, value []byte) ([]byte, error) {
	for _, m := range s.Members {
		if at := int(m.Offset.Bytes()); m.Name == name && at+4 <= len(value) {
			return value[at : at+4], nil
		}
	}
	return nil, fmt.Errorf("struct %s has no field %s", s.Name, name)
}

// openOld opens a pinned map of another layout and finds its value's structure.
func openOld(path, value string) (*ebpf.Map, *btf.Struct, error) {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return nil, nil, err
	}
	s, err := flowtable.StructOf(m, value)
	if err != nil {
		m.Close()
		return nil, nil, err
	}
	return m, s, nil
}

func migrateMap(path string, to *ebpf.Map, keyName, valueName string) (int, error) {
	old, oldValue, err := openOld(path, valueName)
	if err != nil {
		return 0, err
	}
	defer old.Close()
	oldKey, err1 := flowtable.StructOf(old, keyName)
	newKey, err2 := flowtable.StructOf(to, keyName)
	newValue, err3 := flowtable.StructOf(to, valueName)
	if err := errors.Join(err1, err2, err3); err != nil {
		return 0, err
	}
	if int(oldKey.Size) != int(old.KeySize()) || int(oldValue.Size) != int(old.ValueSize()) {
		return 0, errors.New("the layout that the map's BTF describes is not the map's")
	}
	n := 0
	var errs []error
	err = flowtable.Walk(old, func(key, value []byte) {
		k, v := make([]byte, newKey.Size), make([]byte, newValue.Size)
		copyFields(newKey, k, oldKey, key)
		copyFields(newValue, v, oldValue, value)
		copyEntry(newValue, v, oldValue, value)
		switch err := to.Update(k, v, ebpf.UpdateNoExist); {
		case err == nil:
			n++
		case errors.Is(err, ebpf.ErrKeyExist):
		case len(errs) < 3:
			errs = append(errs, err)
		}
	})
	return n, errors.Join(append(errs, err)...)
}

// copyEntry says where a flow's packets come from, of a layout up to 3: that had the pod's
// interface, 0 for all others (`iif`), of which it is found out by the next packet.
func copyEntry(to *btf.Struct, out []byte, from *btf.Struct, in []byte) {
	was, where, source := flowtable.OffsetOf(from, "iif"), flowtable.OffsetOf(to, "from"), flowtable.OffsetOf(to, "source")
	if was < 0 || where < 0 || source < 0 {
		return
	}
	if ifindex := in[was:][:4]; binary.NativeEndian.Uint32(ifindex) != 0 {
		out[where] = abi.FromPod
		copy(out[source:], ifindex)
	}
}

// copyFields copies what has the same name: structures field by field, and everything else byte by
// byte, as much as both have. That is right for what the maps hold: addresses and ports in network
// byte order, numbers in little-endian.
func copyFields(to *btf.Struct, out []byte, from *btf.Struct, in []byte) {
	for _, m := range to.Members {
		i := slices.IndexFunc(from.Members, func(o btf.Member) bool { return o.Name == m.Name })
		if i < 0 {
			continue
		}
		o := from.Members[i]
		outSize, err1 := btf.Sizeof(m.Type)
		inSize, err2 := btf.Sizeof(o.Type)
		if err1 != nil || err2 != nil || m.BitfieldSize != 0 || o.BitfieldSize != 0 {
			continue
		}
		target, source := out[m.Offset.Bytes():][:outSize], in[o.Offset.Bytes():][:inSize]
		inner, ok1 := btf.UnderlyingType(m.Type).(*btf.Struct)
		outer, ok2 := btf.UnderlyingType(o.Type).(*btf.Struct)
		if ok1 && ok2 {
			copyFields(inner, target, outer, source)
			continue
		}
		copy(target, source)
	}
}
