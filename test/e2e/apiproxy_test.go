// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"
)

// TestServeAPI: a connection that comes while nobody serves waits, and is served when somebody
// does.
func TestServeAPI(t *testing.T) {
	// On an address of its own, so that nobody takes the port meanwhile.
	pid := os.Getpid()
	reserve, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 100+pid>>16, pid>>8&255, pid&255))
	if err != nil {
		t.Fatal(err)
	}
	target := reserve.Addr().String()
	reserve.Close()
	ctx, cancel := context.WithCancel(context.Background())
	addr, done := make(chan string, 1), make(chan error, 1)
	go func() { done <- serveAPI(ctx, "127.0.0.1:0", target, 20*time.Second, func(a string) { addr <- a }) }()
	c, err := net.Dial("tcp", <-addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintln(c, "hello")
	time.Sleep(150 * time.Millisecond)
	l, err := net.Listen("tcp", target)
	if err != nil {
		t.Fatal("somebody else took the port meanwhile:", err)
	}
	defer l.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(s).ReadString('\n'); line != "hello\n" {
		t.Errorf("the server reads %q, %v", line, err)
	}
	fmt.Fprintln(s, "answer")
	s.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	r := bufio.NewReader(c)
	if line, err := r.ReadString('\n'); line != "answer\n" {
		t.Errorf("the client reads %q, %v", line, err)
	}
	if _, err := r.ReadString('\n'); err == nil {
		t.Error("the client does not see that the server ended")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
