// SPDX-License-Identifier: Apache-2.0

package flowstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/table"
)

// pageBytes is how much of a column is one page, before it is encoded: a page is what is read for
// one record. Memory and files grow with smaller ones. Tests have smaller ones.
var pageBytes = 64 << 10

// The tables of a segment are Parquet files of these columns. Texts that are JSON are so because
// they have parts that few ask for.
type (
	tableRow struct {
		End             int64  `parquet:"end,split"`
		Lasted          int64  `parquet:"lasted,split"`
		From            int32  `parquet:"from,delta"`
		To              int32  `parquet:"to,split"`
		Source4         int32  `parquet:"source4,split"` // an IPv4 address; 0 = none
		Source6         string `parquet:"source6,delta"` // an IPv6 address, 16 bytes
		Destination4    int32  `parquet:"destination4,split"`
		Destination6    string `parquet:"destination6,delta"`
		Sport           int32  `parquet:"sport,split"`
		Dport           int32  `parquet:"dport,split"`
		What            int32  `parquet:"what,split"`
		How             int32  `parquet:"how,split"`
		At              int32  `parquet:"at,split"`
		SentPackets     int64  `parquet:"sentPackets,split"`
		SentBytes       int64  `parquet:"sentBytes,split"`
		ReceivedPackets int64  `parquet:"receivedPackets,split"`
		ReceivedBytes   int64  `parquet:"receivedBytes,split"`
		// Segments of versions before have none of these.
		Handshake     int32 `parquet:"handshake,split"`
		SentAgain     int32 `parquet:"sentAgain,split"`
		ReceivedAgain int32 `parquet:"receivedAgain,split"`
	}
	// Of segments with sums: those that a store made, or a node.
	tableSums struct {
		tableRow
		Records     int64 `parquet:"records,split"`
		Connections int64 `parquet:"connections,split"`
	}
	tablePeer struct {
		Namespace string `parquet:"namespace,dict"`
		Pod       string `parquet:"pod,delta"`
		Workload  string `parquet:"workload,dict"`
		Node      string `parquet:"node,dict"`
		Address   string `parquet:"address"`
		Labels    string `parquet:"labels,dict"`
	}
	tableWhat struct {
		Verdict string `parquet:"verdict,dict"`
		Reason  string `parquet:"reason,dict"`
		Service string `parquet:"service,dict"`
		Asked   string `parquet:"asked"`
		Egress  string `parquet:"egress,dict"`
		Ingress string `parquet:"ingress,dict"`
		Rule    string `parquet:"rule,dict"`
	}
	tableHow struct {
		Ended    string `parquet:"ended,dict"`
		Protocol string `parquet:"protocol,dict"`
		ICMP     string `parquet:"icmp,dict"`
		Path     string `parquet:"path,dict"`
		Return   string `parquet:"return,dict"`
		TCPFlags string `parquet:"tcpFlags,dict"`
		HandedOn bool   `parquet:"handedOn"`
		DSR      bool   `parquet:"dsr"`
		SNAT     bool   `parquet:"snat"`
	}
	tableName struct { // of nodes, and of roll-ups
		Name string `parquet:"name,delta"`
	}
	tableWorkload struct {
		Namespace string `parquet:"namespace,dict"`
		Name      string `parquet:"name,delta"`
	}
	// Texts of roll-ups are numbers of fileNames: they are compared and summed as such.
	tableOutcome struct {
		Verdict     int32 `parquet:"verdict,split"`
		Reason      int32 `parquet:"reason,split"`
		Protocol    int32 `parquet:"protocol,split"`
		Side        int32 `parquet:"side,split"`
		Kind        int32 `parquet:"kind,split"`
		Name        int32 `parquet:"name,split"`
		Tier        int32 `parquet:"tier,split"`
		Detail      int32 `parquet:"detail,split"`
		Records     int64 `parquet:"records,split"`
		Connections int64 `parquet:"connections,split"`
		Packets     int64 `parquet:"packets,split"`
		Bytes       int64 `parquet:"bytes,split"`
	}
	tableSpaces struct {
		From        int32 `parquet:"from,delta"`
		To          int32 `parquet:"to,split"`
		Verdict     int32 `parquet:"verdict,split"`
		Side        int32 `parquet:"side,split"`
		Records     int64 `parquet:"records,split"`
		Connections int64 `parquet:"connections,split"`
		Packets     int64 `parquet:"packets,split"`
		Bytes       int64 `parquet:"bytes,split"`
	}
	tablePair struct {
		From        int32 `parquet:"from,delta"`
		To          int32 `parquet:"to,split"`
		Outcome     int32 `parquet:"outcome,split"`
		Port        int32 `parquet:"port,split"`
		Records     int64 `parquet:"records,split"`
		Connections int64 `parquet:"connections,split"`
		Packets     int64 `parquet:"packets,split"`
		Bytes       int64 `parquet:"bytes,split"`
	}
)

// The files of a segment.
const (
	fileRows      = "rows.parquet"
	filePeers     = "peers.parquet"
	fileWhats     = "whats.parquet"
	fileHows      = "hows.parquet"
	fileNodes     = "nodes.parquet"
	fileNames     = "names.parquet"
	fileWorkloads = "workloads.parquet"
	fileOutcomes  = "outcomes.parquet"
	fileSpaces    = "spaces.parquet"
	filePairs     = "pairs.parquet"
)

// writeTable writes a file of n rows, and has it on the disk when it returns.
func writeTable[T any](dir, name string, n int, fill func(i int, row *T) error) (err error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := parquet.NewGenericWriter[T](f, parquet.Compression(&zstd.Codec{Level: zstd.SpeedDefault}), parquet.PageBufferSize(pageBytes),
		parquet.CreatedBy("weir", "1", ""), parquet.DictionaryMaxBytes(1<<20))
	batch := make([]T, min(n, 1024))
	for at := 0; at < n; {
		some := batch[:min(len(batch), n-at)]
		clear(some)
		for i := range some {
			if err := fill(at+i, &some[i]); err != nil {
				return err
			}
		}
		if _, err := w.Write(some); err != nil {
			return err
		}
		at += len(some)
	}
	if err := w.Close(); err != nil {
		return err
	}
	return f.Sync()
}

// opened is a file of a segment that is read. Its methods' errors are errTorn where what it has is
// not what was written.
type opened struct {
	*parquet.File
	f *os.File
}

func openTable(dir, name string) (o opened, err error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return o, err
	}
	st, err := f.Stat()
	if err == nil {
		err = whole(name, func() (err error) {
			o.File, err = parquet.OpenFile(f, st.Size(), parquet.SkipBloomFilters(true))
			return err
		})
	}
	if err != nil {
		f.Close()
		return opened{}, err
	}
	o.f = f
	return o, nil
}

func (o opened) Close() { o.f.Close() }

// errTorn is of a segment with a file that cannot be read as it was written.
var errTorn = errors.New("torn")

// whole calls what reads a file, and says by errTorn what is wrong with its contents: the library
// returns an error or panics. Errors of the disk stay what they are.
func whole(name string, read func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %s: %v", errTorn, name, p)
		}
	}()
	err = read()
	if pe := (*os.PathError)(nil); err == nil || errors.As(err, &pe) {
		return err
	}
	return fmt.Errorf("%w: %s: %w", errTorn, name, err)
}

// readTable reads a file of at most most rows.
func readTable[T any](dir, name string, most int, each func(*T) error) error {
	o, err := openTable(dir, name)
	if err != nil {
		return err
	}
	defer o.Close()
	return whole(name, func() error {
		if o.NumRows() > int64(most) {
			return fmt.Errorf("%d rows, of at most %d", o.NumRows(), most)
		}
		r := parquet.NewGenericReader[T](o.File)
		defer r.Close()
		batch := make([]T, 256)
		for {
			n, err := r.Read(batch)
			for i := range batch[:n] {
				if err := each(&batch[i]); err != nil {
					return err
				}
			}
			switch {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				return err
			case n == 0:
				return io.ErrNoProgress
			}
		}
	})
}

// column reads rows of a column: those of the numbers, which ascend, or all when they are nil.
func column[T any](o opened, name string, rows []int32, of func(parquet.Page) ([]T, error)) (out []T, err error) {
	n := int(o.NumRows())
	if n == 0 || rows != nil && len(rows) == 0 {
		return nil, nil
	}
	err = whole(filepath.Base(o.f.Name())+": "+name, func() (err error) {
		leaf, ok := o.Schema().Lookup(name)
		if !ok || len(o.RowGroups()) != 1 {
			return errors.New("no such column, or not one group of rows")
		}
		pages := o.RowGroups()[0].ColumnChunks()[leaf.ColumnIndex].Pages()
		defer func() { err = errors.Join(err, pages.Close()) }()
		out = make([]T, 0, len(rows))
		if rows == nil {
			out = make([]T, 0, n)
		}
		for at, i := int64(0), 0; ; {
			switch {
			case rows == nil && at >= int64(n), rows != nil && i >= len(rows):
				return nil
			case rows != nil && int64(rows[i]) > at:
				at = int64(rows[i])
				if err := pages.SeekToRow(at); err != nil {
					return err
				}
			}
			page, err := pages.ReadPage()
			if err != nil {
				return fmt.Errorf("row %d: %w", at, err)
			}
			values, err := of(page)
			if err == nil && (int64(len(values)) != page.NumRows() || len(values) == 0) {
				err = errors.New("a page without as many values as rows")
			}
			if err != nil {
				return err
			}
			if rows == nil {
				out = append(out, values...)
			}
			for ; i < len(rows) && int64(rows[i]) < at+int64(len(values)); i++ {
				out = append(out, values[int64(rows[i])-at])
			}
			at += int64(len(values))
			parquet.Release(page)
		}
	})
	return out, err
}

func int32s(p parquet.Page) ([]int32, error) {
	d := p.Data()
	return d.Int32(), nil
}

func int64s(p parquet.Page) ([]int64, error) {
	d := p.Data()
	return d.Int64(), nil
}

func texts(p parquet.Page) ([]string, error) {
	values := make([]parquet.Value, p.NumValues())
	n, err := p.Values().ReadValues(values)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	out := make([]string, n)
	for i := range out {
		out[i] = string(values[i].ByteArray())
	}
	return out, nil
}

func toJSON[T any](v *T) (string, error) {
	if v == nil {
		return "", nil
	}
	b, err := json.Marshal(v)
	return string(b), err
}

// texted are values by their text, as tables have few of them, many times: who reads shares them.
type texted[T any] map[string]*T

// of is the value of a text; nil of none.
func (c texted[T]) of(text string) (*T, error) {
	if v, have := c[text]; have || text == "" {
		return v, nil
	}
	v := new(T)
	if err := json.Unmarshal([]byte(text), v); err != nil {
		return nil, err
	}
	c[strings.Clone(text)] = v
	return v, nil
}

func putPeer(p *flows.Peer, to *tablePeer) error {
	*to = tablePeer{Namespace: p.Namespace, Pod: p.Pod, Workload: p.Workload, Node: p.Node, Address: string(p.Address.AsSlice())}
	if len(p.Labels) == 0 {
		return nil
	}
	b, err := json.Marshal(p.Labels)
	to.Labels = string(b)
	return err
}

// peer is what putPeer was given.
func (t *tablePeer) peer(labels texted[map[string]string]) (flows.Peer, error) {
	p := flows.Peer{Namespace: t.Namespace, Pod: t.Pod, Workload: t.Workload, Node: t.Node}
	if t.Address != "" {
		a, ok := netip.AddrFromSlice([]byte(t.Address))
		if !ok {
			return p, errors.New("an address that is none")
		}
		p.Address = a
	}
	of, err := labels.of(t.Labels)
	if of != nil {
		p.Labels = *of
	}
	return p, err
}

func putWhat(w *table.What, to *tableWhat) (err error) {
	var errs [3]error
	*to = tableWhat{Verdict: w.Verdict, Reason: w.Reason, Service: w.Service, Asked: w.Asked}
	to.Egress, errs[0] = toJSON(w.Egress)
	to.Ingress, errs[1] = toJSON(w.Ingress)
	to.Rule, errs[2] = toJSON(w.Rule)
	return errors.Join(errs[:]...)
}

func (t *tableWhat) what(ends texted[events.End], rules texted[events.Rule]) (table.What, error) {
	var errs [3]error
	w := table.What{Verdict: t.Verdict, Reason: t.Reason, Service: t.Service, Asked: t.Asked}
	w.Egress, errs[0] = ends.of(t.Egress)
	w.Ingress, errs[1] = ends.of(t.Ingress)
	w.Rule, errs[2] = rules.of(t.Rule)
	return w, errors.Join(errs[:]...)
}
