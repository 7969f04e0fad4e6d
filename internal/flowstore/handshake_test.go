// SPDX-License-Identifier: Apache-2.0

package flowstore

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// rowBefore is a row of versions that knew neither how long handshakes take nor of retransmissions.
type rowBefore struct {
	End             int64  `parquet:"end,split"`
	Lasted          int64  `parquet:"lasted,split"`
	From            int32  `parquet:"from,delta"`
	To              int32  `parquet:"to,split"`
	Source4         int32  `parquet:"source4,split"`
	Source6         string `parquet:"source6,delta"`
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
}

// A segment of a version that knew neither how long handshakes take nor of retransmissions is read,
// and merged with others.
func TestSegmentsWithoutHandshakes(t *testing.T) {
	t.Parallel()
	now := epoch.Add(10 * time.Minute)
	o := opening(t, &now)
	s := mustOpen(t, o)
	records := random(21, 50)
	s.Add(records...)
	s.Flush()
	dir := s.segments[0].dir
	var rows []rowBefore
	err := readTable(dir, fileRows, len(records), func(x *tableRow) error {
		rows = append(rows, rowBefore{x.End, x.Lasted, x.From, x.To, x.Source4, x.Source6, x.Destination4, x.Destination6, x.Sport, x.Dport, x.What, x.How, x.At,
			x.SentPackets, x.SentBytes, x.ReceivedPackets, x.ReceivedBytes})
		return nil
	})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	must(os.Remove(filepath.Join(dir, fileRows)))
	must(writeTable(dir, fileRows, len(rows), func(i int, row *rowBefore) error { *row = rows[i]; return nil }))
	z := s.segments[0].zone
	z.Files, _, err = sizes(dir)
	must(err)
	text, err := json.Marshal(z)
	must(err)
	must(os.WriteFile(filepath.Join(dir, zoneFile), text, 0o600))
	for _, f := range records {
		f.Handshake, f.Retransmitted = 0, nil
	}
	again := mustOpen(t, o)
	same(t, "of the version before", found(t, again, Query{}), records)
	newer := random(22, 50)
	again.Add(newer...)
	again.Flush()
	p, err := again.mergedPart(t.Context(), again.segments, false)
	must(err)
	var known, some [2]int
	for i := range p.rows {
		if p.rows[i].Handshake > 0 {
			known[0]++
		}
		if p.rows[i].SentAgain > 0 && p.rows[i].ReceivedAgain > 0 {
			known[1]++
		}
	}
	for _, f := range newer {
		if f.Handshake > 0 {
			some[0]++
		}
		if f.Retransmitted != nil {
			some[1]++
		}
	}
	if len(p.rows) != 100 || some[0] == 0 || some[1] == 0 || known != some {
		t.Errorf("merged there are %d rows, %v with the time of a handshake and with retransmissions, of %v", len(p.rows), known, some)
	}
}
