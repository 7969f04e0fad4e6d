// SPDX-License-Identifier: Apache-2.0

// Package wire has records of flows as messages (wire.proto), from a node's agent to the store of
// flow records: an answer that goes on, of batches with their lengths in front. A batch has all
// that its records refer to, once: some 60 bytes a record, and what a reader pays for is columns of
// numbers. Batches are bounded, as who sends them may be hostile.
package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/table"
)

//go:generate go -C ../../../hack/tools run ./gen-proto internal/flows/wire/wire.proto

// Path is where an agent gives its records, from a position on (Query).
const Path = "/flows/follow"

// ContentType is that of the answer.
const ContentType = "application/x-weir-flows"

// Bounds of a batch.
const (
	// MostRecords is how many records it may have.
	MostRecords = 4096
	// MostBytes bounds its message. One that is sent has about half of it at most, but for a single
	// record.
	MostBytes  = 2 << 20
	tablesMost = 512 << 10 // bytes of what its records refer to, from which on it takes no more
	// mostFields bounds its fields: of two peers, a decision and a course for each record, with two
	// addresses, and what there is once.
	mostFields = 7 * MostRecords
)

// Position is a place in the records of an agent: number Next of those since the start that Boot
// names. The zero value is before all that the agent has.
type Position struct {
	Boot string `json:"boot"`
	Next uint64 `json:"next"`
}

// Query is the position as parameters of a question.
func (p Position) Query() url.Values {
	if p.Boot == "" {
		return url.Values{}
	}
	return url.Values{"after": {p.Boot + "/" + strconv.FormatUint(p.Next, 10)}}
}

// ParsePosition reads what Query wrote.
func ParsePosition(q url.Values) (p Position, err error) {
	text := q.Get("after")
	if text == "" {
		return p, nil
	}
	boot, next, ok := strings.Cut(text, "/")
	if p.Next, err = strconv.ParseUint(next, 10, 64); !ok || err != nil || boot == "" {
		return Position{}, fmt.Errorf("after %q: BOOT/NUMBER", text)
	}
	p.Boot = boot
	return p, nil
}

// Writer writes batches.
type Writer struct {
	to  io.Writer
	buf []byte
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{to: w} }

// Write writes some of the records, the first of which has this number, and returns how many: fewer
// than there are where they do not fit in one batch. Without records it says what is lost alone.
func (w *Writer) Write(boot string, first uint64, lost map[string]uint64, records []*flows.Flow) (n int, err error) {
	numbers := table.NewNumbers()
	b := &Batch{Boot: boot, First: first, Lost: lost}
	for n < min(len(records), MostRecords) && numbers.Bytes < tablesMost {
		r := numbers.Add(records[n])
		b.add(&r)
		n++
	}
	if err := b.setTables(&numbers.Tables); err != nil {
		return 0, fmt.Errorf("encode flow records: %w", err)
	}
	w.buf, err = proto.MarshalOptions{}.MarshalAppend(append(w.buf[:0], 0, 0, 0, 0), b)
	if err != nil {
		return 0, fmt.Errorf("encode flow records: %w", err)
	}
	size := len(w.buf) - 4
	binary.BigEndian.PutUint32(w.buf, uint32(size))
	if size > MostBytes { // of one record: two have less than tablesMost by what came before
		return n, w.skip(boot, first+uint64(n), lost)
	}
	_, err = w.to.Write(w.buf)
	return n, err
}

// skip says that the next record has this number.
func (w *Writer) skip(boot string, next uint64, lost map[string]uint64) error {
	_, err := w.Write(boot, next, lost, nil)
	return err
}

// Reader reads what a Writer wrote.
type Reader struct {
	from *bufio.Reader
	buf  []byte
}

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader { return &Reader{from: bufio.NewReaderSize(r, 64<<10)} }

// errBatch is of a batch that means nothing.
var errBatch = errors.New("a batch of flow records that is none")

// Next returns the next batch. The error is io.EOF where the answer ends between two.
func (r *Reader) Next() (*Batch, error) {
	var length [4]byte
	if _, err := io.ReadFull(r.from, length[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(length[:])
	if size > MostBytes {
		return nil, fmt.Errorf("%w: it has %d bytes", errBatch, size)
	}
	if cap(r.buf) < int(size) {
		r.buf = make([]byte, size)
	}
	r.buf = r.buf[:size]
	if _, err := io.ReadFull(r.from, r.buf); err != nil {
		return nil, fmt.Errorf("read a batch of flow records: %w", err)
	}
	b := &Batch{}
	if err := checkFields(r.buf); err != nil {
		return nil, err
	}
	if err := proto.Unmarshal(r.buf, b); err != nil {
		return nil, fmt.Errorf("%w: %w", errBatch, err)
	}
	return b, nil
}

// checkFields refuses a message of many small fields, which would take many times its size in
// memory.
func checkFields(message []byte) error {
	for n := 0; len(message) > 0; n++ {
		_, _, size := protowire.ConsumeField(message)
		if size < 0 {
			return fmt.Errorf("%w: %w", errBatch, protowire.ParseError(size))
		}
		if n == mostFields {
			return fmt.Errorf("%w: it has more than %d fields", errBatch, mostFields)
		}
		message = message[size:]
	}
	return nil
}
