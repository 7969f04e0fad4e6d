// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/cni/wire"
	"github.com/weir-net/weir/internal/ipam"
)

// FuzzRequest sends anything to the protocol's reader; what it and validate accept has names that
// are safe in file names, sysctl paths and aliases.
func FuzzRequest(f *testing.F) {
	for _, command := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS"} {
		body, _ := json.Marshal(request(command, "p", "c"))
		f.Add(append([]byte{'W', 'C', 'N', 'I', 0, 0, 0, byte(len(body))}, body...))
	}
	f.Add([]byte("WCNI\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		var ends [2]*net.UnixConn
		for i, fd := range fds {
			file := os.NewFile(uintptr(fd), "end")
			c, err := net.FileConn(file)
			file.Close()
			if err != nil {
				t.Fatal(err)
			}
			ends[i] = c.(*net.UnixConn)
			defer ends[i].Close()
		}
		go func() {
			ends[0].Write(data)
			ends[0].CloseWrite()
		}()
		ends[1].SetDeadline(time.Now().Add(await.Patience))
		req, netns, err := wire.ReadRequest(ends[1])
		if err != nil {
			return
		}
		if netns != nil {
			t.Fatal("a descriptor out of nothing")
		}
		if validate(req, nil) != nil || req.Command == "STATUS" || req.Command == "GC" {
			return
		}
		if req.Command != "DEL" {
			t.Fatalf("%s without a namespace was accepted", req.Command)
		}
		if text := req.ContainerID + req.IfName + req.Namespace + req.Pod + req.UID; strings.ContainsAny(text, "/\x00\n ") || req.IfName == ".." {
			t.Fatalf("accepted %+v", req)
		}
	})
}

// FuzzAnnotations: no annotation makes the agent panic, and a refusal names the annotation.
func FuzzAnnotations(f *testing.F) {
	for _, text := range []string{`["10.0.0.1"]`, `["fd00::1%eth0"]`, `[]`, `{}`, `null`, `["default"]`, "02:00:00:00:00:01", `["ipv4"]`, "\x00"} {
		for i := range 5 {
			f.Add(uint8(i), text)
		}
	}
	names := []string{annotationAddrs, annotationPools4, annotationPools6, annotationMAC, annotationFamilies}
	log := quietLog()
	f.Fuzz(func(t *testing.T, which uint8, text string) {
		name := names[int(which)%len(names)]
		req := ipam.Request{IPv4: true, Record: ipam.Record{MAC: "02:00:00:00:00:09"}}
		err := applyAnnotations(Pod{Annotations: map[string]string{name: text}}, &req, log)
		if err != nil {
			if err.Code != wire.CodeAnnotation || !strings.Contains(err.Message, name) {
				t.Fatal(err)
			}
			return
		}
		for _, a := range req.Fixed {
			if !a.IsValid() || a.Zone() != "" || a.IsMulticast() {
				t.Fatal("accepted the address", a)
			}
		}
		if mac := parseMAC(req.MAC); mac[0]&1 != 0 || bytes.Equal(mac[:], make([]byte, 6)) {
			t.Fatal("accepted the MAC address", req.MAC)
		}
	})
}
