// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/spf13/cobra"
)

// block is the size of what one write carries, bytes: a number, its complement's checksum, noise.
const block = 1024

// StreamResult is what a connection went through.
type StreamResult struct {
	Sent     int     `json:"sent"`     // blocks
	Received int     `json:"received"` // blocks, each compared byte by byte
	GapMS    float64 `json:"gap_ms"`   // the longest time without a block
	Error    string  `json:"error,omitempty"`
}

// streamCommand keeps one connection to an echo server busy and checks every byte that comes back.
// It writes "ready" when the first block is back.
func streamCommand() *cobra.Command {
	var every time.Duration
	var burst int
	c := &cobra.Command{Use: "stream ADDRESS", Args: cobra.ExactArgs(1), RunE: func(_ *cobra.Command, args []string) error {
		return say(stream(args[0], every, burst))
	}}
	c.Flags().DurationVar(&every, "every", 5*time.Millisecond, "between two blocks")
	c.Flags().IntVar(&burst, "burst", 0, "send so many blocks as fast as it goes, then end")
	return c
}

func fill(b []byte, n uint64) {
	binary.BigEndian.PutUint64(b, n)
	rng := rand.New(rand.NewPCG(n, 7))
	for i := 12; i+8 <= len(b); i += 8 {
		binary.BigEndian.PutUint64(b[i:], rng.Uint64())
	}
	binary.BigEndian.PutUint32(b[8:], crc32.ChecksumIEEE(b[12:]))
}

func stream(to string, every time.Duration, burst int) StreamResult {
	var res StreamResult
	conn, err := net.DialTimeout("tcp", to, 20*time.Second)
	if err != nil {
		res.Error = err.Error()
		return res
	}
	defer conn.Close()
	sent := make(chan error, 1)
	go func() { sent <- send(conn.(*net.TCPConn), every, burst, &res.Sent) }()
	want, got := make([]byte, block), make([]byte, block)
	last := time.Now()
	for {
		// A connection that is dead without a word is an error too.
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		_, err := io.ReadFull(conn, got)
		if err == io.EOF {
			break
		}
		if err != nil {
			res.Error = fmt.Sprintf("reading block %d: %v", res.Received, err)
			break
		}
		fill(want, uint64(res.Received))
		if !bytes.Equal(want, got) {
			res.Error = fmt.Sprintf("block %d came back changed", res.Received)
			break
		}
		if res.Received++; res.Received == 1 && burst == 0 {
			_ = say("ready")
		}
		res.GapMS = max(res.GapMS, float64(time.Since(last).Microseconds())/1000)
		last = time.Now()
	}
	conn.Close()
	if err := <-sent; err != nil && res.Error == "" {
		res.Error = "sending: " + err.Error()
	}
	if res.Error == "" && res.Sent != res.Received {
		res.Error = fmt.Sprintf("%d blocks were sent, %d came back", res.Sent, res.Received)
	}
	return res
}

// send returns nil when it sent everything and said so.
func send(conn *net.TCPConn, every time.Duration, burst int, count *int) error {
	ctx := context.Background()
	if burst == 0 {
		ctx = untilStdinEnds()
	}
	b := make([]byte, block)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for ctx.Err() == nil && (burst == 0 || *count < burst) {
		fill(b, uint64(*count))
		if _, err := conn.Write(b); err != nil {
			return err
		}
		*count++
		if burst > 0 {
			continue
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return conn.CloseWrite()
}
