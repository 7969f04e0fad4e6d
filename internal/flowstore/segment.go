// SPDX-License-Identifier: Apache-2.0

package flowstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows/table"
)

const (
	zoneFile   = "zone.json"
	zoneMost   = 8 << 20 // bytes of it
	partPrefix = "part-" // of a folder that is being written
	tornPrefix = "torn-" // of a segment that was refused
	format     = 1       // of segments; others are refused
)

// zone says what a segment is about.
type zone struct {
	Format  int              `json:"format"`
	Records int              `json:"records"`
	From    int64            `json:"from"`  // least End, in milliseconds since 1970
	Until   int64            `json:"until"` // greatest
	Names   bloom            `json:"names"`
	Files   map[string]int64 `json:"files"` // bytes
	// Positions are how far the records of nodes' agents were taken, by node: those up to there are
	// in this segment or in earlier ones. Lost are records that are not kept since the segment
	// before, by why.
	Positions map[string]*position `json:"positions,omitempty"`
	Lost      map[string]uint64    `json:"lost,omitempty"`
	// First is the number of the first segment whose records it has, where it was merged; Level is
	// how often. Coarse is in how many milliseconds records became one, 0 = they are as they were;
	// Of is how many they were then.
	First  uint64 `json:"first,omitempty"`
	Level  int    `json:"level,omitempty"`
	Coarse int64  `json:"coarse,omitempty"`
	Of     uint64 `json:"of,omitempty"`
}

// of is how many records came, of which there are sums now.
func (z *zone) of() uint64 { return max(z.Of, uint64(z.Records)) }

// segment is a folder that is complete, and does not change.
type segment struct {
	zone
	dir    string
	number uint64 // of the last segment whose records it has
	merged int    // how often what it has was written anew
	bytes  int64

	// With the store's lock:
	readers  int
	replaced bool // another has its records; it is removed when nobody reads it
	alone    bool // it is not merged
}

// first is the number of the first segment whose records it has.
func (s *segment) first() uint64 {
	if s.merged == 0 {
		return s.number
	}
	return s.First
}

// replaces: it has the records of another, which was not removed when it was made.
func (s *segment) replaces(o *segment) bool {
	return s.merged > o.merged && s.first() <= o.first() && o.number <= s.number
}

// nameOf is the name of a segment's folder: it says how many records are lost with it when it is
// torn.
func nameOf(number uint64, records, merged int) string {
	name := fmt.Sprintf("%012d-%d", number, records)
	if merged > 0 {
		name += fmt.Sprintf(".%d", merged)
	}
	return name
}

func parseName(name string) (number uint64, records, merged int, ok bool) {
	n, err := fmt.Sscanf(name, "%d-%d.%d", &number, &records, &merged)
	return number, records, merged, (err == nil || n == 2) && records >= 0 && merged >= 0 && nameOf(number, records, merged) == name
}

// writeSegment makes a segment of a part: complete, or not there.
func writeSegment(root string, number uint64, p *part) (*segment, error) {
	s := &segment{number: number}
	if err := s.write(root, p); err != nil {
		return nil, err
	}
	return s, s.place(root)
}

// temporary is where a segment is while it is written.
func (s *segment) temporary(root string) string {
	return filepath.Join(root, fmt.Sprintf("%s%012d.%d", partPrefix, s.number, s.merged))
}

// write makes the files of a segment that has a number, in a folder that does not count yet.
func (s *segment) write(root string, p *part) (err error) {
	tmp := s.temporary(root)
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	s.dir = filepath.Join(root, nameOf(s.number, len(p.rows), s.merged))
	if s.zone, err = p.write(tmp); err != nil {
		return err
	}
	s.Format = format
	if s.Files, s.bytes, err = sizes(tmp); err != nil {
		return err
	}
	text, err := json.Marshal(s.zone)
	if err != nil {
		return err
	}
	s.bytes += int64(len(text))
	if err := writeSynced(filepath.Join(tmp, zoneFile), text); err != nil {
		return err
	}
	return syncDir(tmp)
}

// place has a segment that was written count from now on, whatever happens.
func (s *segment) place(root string) error {
	if err := os.Rename(s.temporary(root), s.dir); err != nil {
		return errors.Join(err, os.RemoveAll(s.temporary(root)))
	}
	return syncDir(root)
}

func writeSynced(name string, text []byte) (err error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(text); err != nil {
		return err
	}
	return f.Sync()
}

func syncDir(dir string) (err error) {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Sync()
}

// sizes of the files of a folder, but its zone's.
func sizes(dir string) (files map[string]int64, sum int64, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, 0, err
	}
	files = map[string]int64{}
	for _, e := range entries {
		st, err := e.Info()
		if err != nil {
			return nil, 0, err
		}
		if e.Name() != zoneFile {
			files[e.Name()] = st.Size()
		}
		sum += st.Size()
	}
	return files, sum, nil
}

// openSegment reads what a segment is about. The error is errTorn when it is not as it was written;
// that the tables' pages are is seen when they are read, by their checksums.
func openSegment(root, name string) (*segment, error) {
	number, records, merged, ok := parseName(name)
	if !ok {
		return nil, fmt.Errorf("%w: no name of a segment", errTorn)
	}
	s := &segment{dir: filepath.Join(root, name), number: number, merged: merged}
	st, err := os.Stat(filepath.Join(s.dir, zoneFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: it has no %s", errTorn, zoneFile)
	}
	if err != nil {
		return nil, err
	}
	if st.Size() > zoneMost {
		return nil, fmt.Errorf("%w: %s has %d bytes", errTorn, zoneFile, st.Size())
	}
	text, err := os.ReadFile(filepath.Join(s.dir, zoneFile))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &s.zone); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errTorn, zoneFile, err)
	}
	if s.Format != format || s.Records != records || len(s.Names) > bloomMost || s.Coarse < 0 || s.First > s.number {
		return nil, fmt.Errorf("%w: %s is of format %d and %d records", errTorn, zoneFile, s.Format, s.Records)
	}
	files, sum, err := sizes(s.dir)
	if err != nil {
		return nil, err
	}
	s.bytes = sum
	for _, name := range []string{fileRows, filePeers, fileWhats, fileHows, fileNodes, fileNames, fileWorkloads, fileOutcomes, fileSpaces, filePairs} {
		if have, is := files[name]; !is || have != s.Files[name] {
			return nil, fmt.Errorf("%w: %s has %d bytes of %d", errTorn, name, have, s.Files[name])
		}
	}
	return s, nil
}

// tables reads what the segment's rows refer to.
func (s *segment) tables() (*table.Tables, error) {
	t := &table.Tables{}
	labels, ends, rules := texted[map[string]string]{}, texted[events.End]{}, texted[events.Rule]{}
	err := readTable(s.dir, filePeers, 2*s.Records, func(x *tablePeer) error {
		p, err := x.peer(labels)
		t.Peers = append(t.Peers, p)
		return err
	})
	if err == nil {
		err = readTable(s.dir, fileWhats, s.Records, func(x *tableWhat) error {
			w, err := x.what(ends, rules)
			t.Whats = append(t.Whats, w)
			return err
		})
	}
	if err == nil {
		err = readTable(s.dir, fileHows, s.Records, func(x *tableHow) error {
			t.Hows = append(t.Hows, table.How{Ended: x.Ended, Protocol: x.Protocol, ICMP: x.ICMP, Path: x.Path, Return: x.Return, TCPFlags: x.TCPFlags, HandedOn: x.HandedOn, DSR: x.DSR, SNAT: x.SNAT})
			return nil
		})
	}
	if err == nil {
		err = readTable(s.dir, fileNodes, s.Records, func(x *tableName) error { t.Nodes = append(t.Nodes, strings.Clone(x.Name)); return nil })
	}
	return t, err
}

// removeSegment takes a segment away: from then on it is not there, whatever happens meanwhile.
func removeSegment(root string, s *segment) error {
	gone := filepath.Join(root, partPrefix+filepath.Base(s.dir))
	if err := os.Rename(s.dir, gone); err != nil {
		return err
	}
	return os.RemoveAll(gone)
}
