// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
	"github.com/weir-net/weir/internal/sim"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// liar is the oracle, but says something wrong of some packets.
type liar struct {
	scenario.Carrier
	lies func(in sim.In, res sim.Result) bool
}

var errLie = errors.New("not what happened")

func (l liar) Receive(in sim.In) (sim.Result, error) {
	res, err := l.Carrier.Receive(in)
	if err == nil && l.lies(in, res) {
		err = errLie
	}
	return res, err
}

// lying lies always alike.
func lying(lies func(sim.In, sim.Result) bool) bench {
	return lyingAnew(func() func(sim.In, sim.Result) bool { return lies })
}

// lyingAnew makes a lie for each time that a round is played.
func lyingAnew(lies func() func(sim.In, sim.Result) bool) bench {
	return bench{func(m *scenario.Machine) (scenario.Carrier, error) {
		c, err := scenario.NewSim(1)(m)
		return liar{c, lies()}, err
	}, calc.Calc, func() error { return nil }}
}

// aboutAnswers lies about what goes on and is answered, when the answer comes.
func aboutAnswers() func(sim.In, sim.Result) bool {
	type ends struct {
		src, dst         netip.Addr
		srcPort, dstPort uint16
	}
	asked := map[ends]bool{}
	return func(in sim.In, res sim.Result) bool {
		p := in.Packet
		if p.Kind != packet.UDP || res.Action != sim.Neigh && res.Action != sim.Local {
			return false
		}
		asked[ends{p.IP.Src, p.IP.Dst, p.SrcPort, p.DstPort}] = true
		return asked[ends{p.IP.Dst, p.IP.Src, p.DstPort, p.SrcPort}]
	}
}

// TestReduce: where the carrier is wrong about one kind of packet, little more than such a packet
// and the policy that matters to it is left of a round, and the file that is written of it fails as
// the round did.
func TestReduce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		b                      bench
		events, objects, rules int // at most
	}{
		"what policy denies": {lying(func(in sim.In, res sim.Result) bool {
			return res.Action == sim.Drop && res.Reason == reason.PolicyIngress && in.Packet.Kind == packet.TCP
		}), 3, 6, 0}, // a pod and its policy; where a Service leads there, that with its slice, and nodes
		"what is answered": {lyingAnew(aboutAnswers), 3, 6, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := c.b
			r, seed := failed(t, b)
			fails := failing(b, differs{errLie})
			before := len(r.events)
			r = shrink(r, fails)
			t.Logf("seed %d: of %d events %d, objects %v, %d rules", seed, before, len(r.events), r.objects(), len(r.rules()))
			if len(r.events) > c.events || len(r.objects()) > c.objects || len(r.rules()) > c.rules {
				t.Errorf("%d events, %d objects and %d rules are left", len(r.events), len(r.objects()), len(r.rules()))
			}
			path := filepath.Join(t.TempDir(), "round.txtar")
			if err := r.write(path, "why\nand how"); err != nil {
				t.Fatal(err)
			}
			read, err := readRound(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := read.play(b); !errors.Is(err, errLie) {
				t.Errorf("as it is written it ends with %v", err)
			}
			if err := read.play(lying(func(sim.In, sim.Result) bool { return false })); err != nil {
				t.Errorf("where nobody lies it ends with %v", err)
			}
		})
	}
}

// failed plays rounds until one fails.
func failed(t *testing.T, b bench) (*round, uint64) {
	t.Helper()
	for seed := uint64(1); seed < 50; seed++ {
		if r, err := playRandom(b, seed, map[string]int{}); errors.Is(err, errLie) {
			return r, seed
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("no round fails")
	return nil, 0
}

// TestRoundsPlayedAgain: a round that is played again without its random choices ends as it did.
func TestRoundsPlayedAgain(t *testing.T) {
	t.Parallel()
	honest := lying(func(sim.In, sim.Result) bool { return false })
	for seed := range uint64(5) {
		var was, is []string
		note := func(to *[]string) bench {
			return lying(func(in sim.In, res sim.Result) bool {
				*to = append(*to, in.Packet.String()+" "+res.String())
				return false
			})
		}
		r, err := playRandom(note(&was), seed, map[string]int{})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.play(note(&is)); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(was, is) {
			t.Errorf("seed %d: another round of %d packets, not %d", seed, len(is), len(was))
		}
		path := filepath.Join(t.TempDir(), "round.txtar")
		if err := r.write(path, "comment"); err != nil {
			t.Fatal(err)
		}
		read, err := readRound(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range r.clusters() {
			if a, b := r.clusters()[i], read.clusters()[i]; !reflect.DeepEqual(a.Everything(), b.Everything()) || !reflect.DeepEqual(a.Settings, b.Settings) || !reflect.DeepEqual(a.Local, b.Local) {
				t.Fatalf("seed %d: cluster %d is read as another one\n%+v\n%+v", seed, i, a, b)
			}
		}
		if err := read.play(honest); err != nil || len(read.events) != len(r.events) {
			t.Errorf("seed %d: %d events of %d, %v", seed, len(read.events), len(r.events), err)
		}
	}
}

// TestReduceSays: a failure is reported with the file that shows it.
func TestReduceSays(t *testing.T) {
	t.Parallel()
	b := lying(func(_ sim.In, res sim.Result) bool { return res.Action == sim.Drop })
	r, seed := failed(t, b)
	said := reduce("TestShrinking", b, seed, r, differs{errLie})
	_, rest, ok := strings.Cut(said, "WEIR_ROUND=$PWD/")
	path, _, _ := strings.Cut(rest, " ")
	if !ok || !strings.HasPrefix(path, "out/round-shrinking-") {
		t.Fatalf("it says %q", said)
	}
	defer os.Remove(filepath.Join(outRounds, filepath.Base(path)))
	text, err := os.ReadFile(filepath.Join(outRounds, filepath.Base(path)))
	if err != nil || !strings.Contains(string(text), "WEIR_SEED=") || !strings.Contains(string(text), errLie.Error()) {
		t.Errorf("%v: %s", err, text)
	}
	if honest := lying(func(sim.In, sim.Result) bool { return false }); !strings.Contains(reduce("TestShrinking", honest, seed, r, differs{errLie}), "does not fail") {
		t.Error("a round that does not fail again is reduced")
	}
}
