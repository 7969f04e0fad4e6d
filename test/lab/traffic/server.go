// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
)

// seen counts connections and datagrams by the address they came from.
type seen struct {
	mu sync.Mutex
	by map[string]int
}

func (s *seen) note(remote net.Addr) string {
	host, _, err := net.SplitHostPort(remote.String())
	if err != nil {
		host = remote.String()
	}
	s.mu.Lock()
	s.by[host]++
	s.mu.Unlock()
	return host
}

func (s *seen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for host, n := range s.by {
		out = append(out, fmt.Sprintf("%s %d\n", host, n))
	}
	sort.Strings(out)
	return strings.Join(out, "")
}

// serverCommand answers with its own name and with the address that it sees:
//
//	--http PORT  GET / = "name address"; GET /seen = a line "address count" for each address that came;
//	             GET /waited = for how long the process waited for a processor, see waited
//	--who  PORT  TCP: "name address" at once, then it waits for the client to close
//	--echo PORT  TCP: everything comes back
//	--udp  PORT  "name address" for every datagram, or, one that begins with "e", the datagram
func serverCommand() *cobra.Command {
	var name, addr string
	var web, who, echo, udp int
	var stdin bool
	c := &cobra.Command{Use: "server", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		s := &seen{by: map[string]int{}}
		// A socket of each family: one for both would be another one to programs at its calls.
		addrs := []string{"0.0.0.0", "::"}
		if addr != "" {
			addrs = []string{addr}
		}
		failed := make(chan error, 4*len(addrs))
		for _, addr := range addrs {
			at := func(port int) string { return net.JoinHostPort(addr, strconv.Itoa(port)) }
			if web > 0 {
				l, err := net.Listen(family("tcp", addr), at(web))
				if err != nil {
					return err
				}
				go func() { failed <- http.Serve(l, webHandler(name, s)) }()
			}
			if who > 0 {
				if err := serveTCP(family("tcp", addr), at(who), failed, func(conn net.Conn) {
					fmt.Fprintf(conn, "%s %s\n", name, s.note(conn.RemoteAddr()))
					_, _ = io.Copy(io.Discard, conn)
				}); err != nil {
					return err
				}
			}
			if echo > 0 {
				if err := serveTCP(family("tcp", addr), at(echo), failed, func(conn net.Conn) {
					s.note(conn.RemoteAddr())
					_, _ = io.Copy(conn, conn)
				}); err != nil {
					return err
				}
			}
			if udp > 0 {
				if err := serveUDP(family("udp", addr), at(udp), name, s, failed); err != nil {
					return err
				}
			}
		}
		if err := say("ready"); err != nil {
			return err
		}
		if stdin {
			select {
			case <-untilStdinEnds().Done():
				return nil
			case err := <-failed:
				return err
			}
		}
		return <-failed
	}}
	host, _ := os.Hostname()
	c.Flags().StringVar(&name, "name", host, "")
	c.Flags().StringVar(&addr, "addr", "", "all addresses of both families")
	c.Flags().IntVar(&web, "http", 0, "")
	c.Flags().IntVar(&who, "who", 0, "")
	c.Flags().IntVar(&echo, "echo", 0, "")
	c.Flags().IntVar(&udp, "udp", 0, "")
	c.Flags().BoolVar(&stdin, "until-stdin-ends", false, "")
	return c
}

// family is the network of a family: "tcp" and an IPv4 address make "tcp4".
func family(network, addr string) string {
	if strings.Contains(addr, ":") {
		return network + "6"
	}
	return network + "4"
}

func webHandler(name string, s *seen) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /seen", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s) })
	waits := watchWaits()
	mux.HandleFunc("GET /waited", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, waits.longest().Milliseconds()) })
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintf(w, "%s %s\n", name, host)
	})
	return mux
}

func serveTCP(network, at string, failed chan<- error, handle func(net.Conn)) error {
	l, err := net.Listen(network, at)
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				failed <- err
				return
			}
			go func() {
				defer conn.Close()
				handle(conn)
			}()
		}
	}()
	return nil
}

func serveUDP(network, at, name string, s *seen, failed chan<- error) error {
	conn, err := net.ListenPacket(network, at)
	if err != nil {
		return err
	}
	go func() {
		buf := make([]byte, 65536)
		for {
			n, from, err := conn.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				failed <- err
				return
			}
			if err != nil {
				continue // an ICMP error that belongs to an earlier answer
			}
			answer := buf[:n]
			if host := s.note(from); n == 0 || buf[0] != 'e' {
				answer = fmt.Appendf(nil, "%s %s\n", name, host)
			}
			_, _ = conn.WriteTo(answer, from)
		}
	}()
	return nil
}
