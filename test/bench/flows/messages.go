// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/wire"
	"github.com/weir-net/weir/internal/flowstore"
)

// batchMost is how many records of a node become a message. Agents have up to 4,096 in one; those
// that wait here take the memory of the store that is measured.
const batchMost = 250

// message is one of a node's agent.
type message struct {
	node string
	text []byte
}

// sending is what all agents send, by one thread.
type sending struct {
	messages chan message
	cpu      time.Duration // that it took; when messages is closed
	err      error
	next     map[string]uint64 // by node: the number of its next record
}

// send makes records up, and messages of them: each has records of one node, as an agent has.
func send(t *traffic, count int, pace float64) *sending {
	s := &sending{messages: make(chan message, 8), next: map[string]uint64{}}
	go func() {
		defer close(s.messages)
		runtime.LockOSThread() // for the time that this takes
		defer runtime.UnlockOSThread()
		cpu, start := cpuTime(unix.RUSAGE_THREAD), time.Now()
		waiting := map[string][]*flows.Flow{}
		for i := range count {
			if pace > 0 && i%batchMost == 0 {
				time.Sleep(time.Until(start.Add(time.Duration(float64(i) / pace * float64(time.Second)))))
			}
			f := t.next()
			if waiting[f.Node] = append(waiting[f.Node], f); len(waiting[f.Node]) < batchMost {
				continue
			}
			if s.err = s.all(f.Node, waiting[f.Node]); s.err != nil {
				return
			}
			clear(waiting[f.Node])
			waiting[f.Node] = waiting[f.Node][:0]
		}
		for node, records := range waiting {
			if s.err = s.all(node, records); s.err != nil {
				return
			}
		}
		s.cpu = cpuTime(unix.RUSAGE_THREAD) - cpu
	}()
	return s
}

// all sends all records of a node.
func (s *sending) all(node string, records []*flows.Flow) error {
	for len(records) > 0 {
		var text bytes.Buffer
		n, err := wire.NewWriter(&text).Write("bench", s.next[node], nil, records)
		if err != nil {
			return err
		}
		s.messages <- message{node, text.Bytes()}
		s.next[node] += uint64(n)
		records = records[n:]
	}
	return nil
}

// take has a store take a message as a collector does, and waits while the disk is behind.
func take(s *flowstore.Store, m message) error {
	b, err := wire.NewReader(bytes.NewReader(m.text)).Next()
	if err != nil {
		return err
	}
	rows, err := b.Rows(m.node)
	if err != nil {
		return err
	}
	batch := &flowstore.Batch{Node: m.node, At: wire.Position{Boot: b.Boot, Next: b.First}, Lost: b.Lost, Records: rows}
	for {
		if taken, err := s.Take(batch); err != nil || taken == rows.Len() {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}
