// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/weir-net/weir/internal/fanout/digest"
	"github.com/weir-net/weir/internal/fanout/stream"
	"github.com/weir-net/weir/internal/model"
)

// What is in testdata was recorded of the last version without digests: what its agent of node n1
// of fleet(3, 4) said first, and what its fan-out sent until a pod was another one, one was gone,
// and a policy was about another port.
const (
	recordedHello  = "testdata/hello-before-digests"
	recordedStream = "testdata/stream-before-digests"
)

// recordedChanges are those of the recorded stream.
func recordedChanges(c *model.Cluster) {
	now := *c.Pods.Get(model.Name{Namespace: "a", Name: "pod-0-0"})
	now.UID = "again"
	c.Pods.Put(&now)
	c.Pods.Delete(model.Name{Namespace: "a", Name: "pod-2-0"})
	p := allow("b", "a", 8080)
	c.Policies[p.ID()] = p
}

// newer adds fields that nobody knows.
func newer(m proto.Message) {
	b := protowire.AppendTag(nil, 4000, protowire.BytesType)
	b = protowire.AppendString(b, "of a later version")
	b = protowire.AppendTag(b, 90, protowire.VarintType)
	m.ProtoReflect().SetUnknown(protowire.AppendVarint(b, 7))
}

// replay serves each agent responses, keeps what it says first, and ends the stream when told to.
type replay struct {
	responses []*stream.Response
	hellos    chan *stream.Request
	end       chan struct{}
}

func (r *replay) serve(t *testing.T) *place {
	t.Helper()
	cert := certificate(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}})))
	stream.Register(g, func(up stream.Server) error {
		hello, err := up.Recv()
		if err != nil {
			return err
		}
		for _, resp := range r.responses {
			if err := up.Send(resp); err != nil {
				return err
			}
		}
		r.hellos <- hello
		for {
			select {
			case <-r.end:
				return status.Error(codes.Unavailable, "it ends")
			case <-up.Context().Done():
				return up.Context().Err()
			case <-time.After(time.Second):
				if err := up.Send(&stream.Response{Fresh: &stream.Fresh{Connected: true}}); err != nil {
					return err
				}
			}
		}
	})
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return &place{t: t, addr: l.Addr().String(), cert: cert.Leaf}
}

func readRecorded(t *testing.T) (out []*stream.Response) {
	t.Helper()
	b, err := os.ReadFile(recordedStream)
	if err != nil {
		t.Fatal(err)
	}
	for r := bufio.NewReader(bytes.NewReader(b)); ; {
		resp := &stream.Response{}
		if err := protodelim.UnmarshalFrom(r, resp); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		out = append(out, resp)
	}
}

// TestFanOutOfAnotherVersion holds that an agent is fed by a fan-out of the version before digests,
// as recorded, and by one that says more than is known here; and that when it comes to such a one
// with what it has, of which that one reads nothing, the snapshot takes the place of it.
func TestFanOutOfAnotherVersion(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*stream.Response){
		"before digests": func(*stream.Response) {},
		"newer": func(resp *stream.Response) {
			newer(resp)
			if resp.Fresh != nil {
				newer(resp.Fresh)
			}
			if resp.Settings != nil {
				newer(resp.Settings)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &replay{responses: readRecorded(t), hellos: make(chan *stream.Request, 2), end: make(chan struct{}, 1)}
			for _, resp := range r.responses {
				change(resp)
			}
			p := r.serve(t)
			a := newAgent(t, "n1", tokenOf("n1"), p)
			a.SetEndpoints(map[netip.Addr]model.Name{netip.MustParseAddr("10.0.1.1"): {Namespace: "a", Name: "pod-1-0"}})
			want := fleet(3, 4)
			recordedChanges(want)
			if first := <-r.hellos; first.Held != nil {
				t.Error("an agent that has nothing described it")
			}
			eventually(t, "what was recorded", func() bool { return a.has(t, want, "n1") })
			a.mu.Lock()
			a.mirror.Pods.Delete(model.Name{Namespace: "a", Name: "pod-0-0"})
			a.mu.Unlock()
			r.end <- struct{}{}
			if again := <-r.hellos; again.Held.GetVersion() != digest.Version || len(again.Held.Scopes) == 0 {
				t.Errorf("it came back with %v", again.Held)
			}
			eventually(t, "the same again", func() bool { return a.has(t, want, "n1") })
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.fulls != 2 || len(a.last.Configs) > 0 && a.last.Full {
				t.Errorf("%d snapshots, the last with configurations that did not change", a.fulls)
			}
		})
	}
}

// TestAgentOfAnotherVersion holds that the agent of the version before digests, as recorded, gets a
// snapshot, and so does one that says more than is known here; and that with digests that are known
// the latter gets what differs.
func TestAgentOfAnotherVersion(t *testing.T) {
	t.Parallel()
	c := fleet(3, 4)
	p := newPlace(t, nil)
	p.fill(c)
	b, err := os.ReadFile(recordedHello)
	if err != nil {
		t.Fatal(err)
	}
	recorded := &stream.Request{}
	if err := proto.Unmarshal(b, recorded); err != nil || recorded.Program != "before digests" {
		t.Fatalf("%v, %v", recorded, err)
	}
	have := model.NewCluster()
	say := func(req *stream.Request) *followed {
		t.Helper()
		s := p.raw(t, tokenOf("n1"))
		if err := s.Send(req); err != nil {
			t.Fatal(err)
		}
		return first(t, s)
	}
	got := say(recorded)
	if got.changes.Apply(have); !got.snapshot || string(encoded(t, have)) != string(encoded(t, ofNode(c, "n1"))) {
		t.Errorf("the agent before digests: snapshot %v, of %d pods", got.snapshot, have.Pods.Len())
	}
	later := proto.Clone(recorded).(*stream.Request)
	newer(later)
	later.Held = stream.HeldFrom(digest.HeldOf(have))
	newer(later.Held)
	for _, s := range later.Held.Scopes {
		newer(s)
	}
	if got := say(later); got.delta == nil || !got.changes.Empty() {
		t.Errorf("one that says more: snapshot %v, %d bytes", got.snapshot, got.bytes)
	}
	later.Held.Version = digest.Version + 1
	later.Held.Scopes[0].Digests = []byte("of another form")
	later.Held.Scopes[0].Kind = 4000
	if got := say(later); !got.snapshot {
		t.Error("one with digests of another version got no snapshot")
	}
}

// TestDeltaThatWasNotAskedFor holds that an agent takes no part of the whole for all of it.
func TestDeltaThatWasNotAskedFor(t *testing.T) {
	t.Parallel()
	responses := readRecorded(t)
	for _, resp := range responses {
		if resp.Snapshot {
			resp.Snapshot, resp.Delta = false, &stream.Delta{}
		}
	}
	r := &replay{responses: responses, hellos: make(chan *stream.Request, 100)}
	a := newAgent(t, "n1", tokenOf("n1"), r.serve(t))
	<-r.hellos
	<-r.hellos // the first stream was left
	if a.Status().Synced {
		t.Error("the agent says that it knows the cluster")
	}
}
