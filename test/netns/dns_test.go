// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// dns starts a name server that knows one address, r.From, for every name, and none of IPv6.
func dns(r request) error {
	own, err := netip.ParseAddr(r.From)
	if err != nil {
		return err
	}
	pc, err := net.ListenPacket("udp", r.Addr)
	if err != nil {
		return err
	}
	go func() {
		buf := make([]byte, 512)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer := dnsAnswer(buf[:n], own); answer != nil {
				pc.WriteTo(answer, from)
			}
		}
	}()
	return nil
}

// dnsAnswer answers a message of one question (RFC 1035, section 4.1), and no other: nil.
func dnsAnswer(q []byte, own netip.Addr) []byte {
	const header, typeA = 12, 1
	end := header
	for end < len(q) && q[end] != 0 {
		end += int(q[end]) + 1
	}
	end += 5 // the root, type and class
	if len(q) < header || end > len(q) || binary.BigEndian.Uint16(q[4:]) != 1 {
		return nil
	}
	out := append([]byte(nil), q[:end]...)
	out[2], out[3] = 0x84|q[2]&1, 0x80 // an answer, with authority; recursion as asked for
	copy(out[6:header], make([]byte, 6))
	if binary.BigEndian.Uint16(q[end-4:]) != typeA {
		return out
	}
	out[7] = 1
	a := own.As4()
	return append(append(out, 0xc0, header, 0, typeA, 0, 1, 0, 0, 0, 0, 0, 4), a[:]...) // no time to live
}

// resolve runs a program that looks names up, with a /etc of its own: the machine's resolv.conf may
// be a link, and its nsswitch.conf name others.
func resolve(r request) answer {
	cmd := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c",
		`mount -t tmpfs none /etc && cp "$1" /etc/resolv.conf && echo "hosts: files dns" >/etc/nsswitch.conf && shift && exec "$@"`, "sh", r.From, r.Name, r.Addr)
	out, err := cmd.CombinedOutput()
	a := answer{Reply: strings.TrimSpace(string(out))}
	if err != nil {
		a.Err = fmt.Sprintf("%v: %s", err, out)
	}
	return a
}

// TestDNS: programs with either C library look names up at the Service's address, and go on when
// its backend is replaced. glibc asks from connected sockets, musl from one that is not, and drops
// answers that come from elsewhere than asked.
func TestDNS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	programs := map[string]string{"glibc": "gcc", "musl": "musl-gcc"}
	for libc, compiler := range programs {
		programs[libc] = filepath.Join(dir, libc)
		cmd := exec.Command(compiler, "-O1", "-o", programs[libc], "testdata/resolve.c")
		if libc == "musl" {
			cmd.Args = append(cmd.Args, "-static")
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("compiling for %s: %v\n%s", libc, err, out)
		}
	}
	conf := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver 10.96.0.10\noptions timeout:20 attempts:3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, mode := range connectModes {
		t.Run(string(mode), func(t *testing.T) {
			f := newFixture(t, ipv4)
			f.cluster.Settings.ConnectTime = mode
			f.service("dns", "10.96.0.10", 0, f.b)
			f.cluster.Services[model.Name{Namespace: "default", Name: "dns"}].Ports[1].Port = 53
			to := func(p *pod) {
				f.endpoints("dns", p)
				f.cluster.Slices[model.Name{Namespace: "default", Name: "dns"}].Ports[1].Port = 8053
				f.apply()
			}
			servers := map[*pod]string{f.b: "192.0.2.1", f.c: "192.0.2.2"}
			for p, known := range servers {
				if a := p.call(request{Op: "dns", Addr: ":8053", From: known}); a.Err != "" {
					t.Fatal(a.Err)
				}
			}
			for _, p := range []*pod{f.b, f.c, f.b} {
				to(p)
				for libc, program := range programs {
					for _, w := range []*worker{f.a.worker, f.b.worker, f.d.worker, f.n1.worker, f.n2.worker} {
						for _, name := range []string{"a.example.test.", "b.example.test."} {
							if a := w.call(request{Op: "resolve", Addr: name, Name: program, From: conf}); a.Reply != servers[p] {
								t.Errorf("%s, %s, backend %s: %s is %q (%s), want %s", w.name, libc, p.name, name, a.Reply, a.Err, servers[p])
							}
						}
					}
				}
			}
		})
	}
}
