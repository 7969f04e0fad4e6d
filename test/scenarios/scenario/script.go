// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/txtar"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/sim"
)

// ErrNoSockets is what a Carrier without socket hooks answers to Connect: the line is passed over.
var ErrNoSockets = errors.New("this data plane has no sockets")

// Limited is a Carrier that does not carry everything.
type Limited interface {
	// Lacks says why something that a scenario needs is not there; "" when it is.
	Lacks(need string) string
}

// FeatureTime is that a Carrier's clock can be moved. Moment seconds can be waited for.
const (
	FeatureTime = "time"
	Moment      = 2
)

// Ended is the error of a scenario that was played up to a line, because what follows needs
// something that a Carrier lacks.
type Ended struct {
	Line      int
	Need, Why string
}

func (e *Ended) Error() string {
	return fmt.Sprintf("played up to line %d, which needs %s: %s", e.Line, e.Need, e.Why)
}

// Scenario is a file that was read.
type Scenario struct {
	files map[string][]byte
	lines []string
	base  []byte
}

// Read reads a scenario and the cluster that it names from a folder as test/scenarios.
func Read(dir fs.FS, name string) (*Scenario, error) {
	data, err := fs.ReadFile(dir, name)
	if err != nil {
		return nil, err
	}
	s := &Scenario{files: map[string][]byte{}}
	for _, f := range txtar.Parse(data).Files {
		s.files[f.Name] = f.Data
	}
	run, ok := s.files["run"]
	if !ok {
		return nil, fmt.Errorf("%s: no file run", name)
	}
	s.lines = strings.Split(string(run), "\n")
	cluster := strings.TrimSpace(string(s.files["cluster"]))
	if cluster == "" {
		cluster = "flat"
	}
	s.base, err = fs.ReadFile(dir, "clusters/"+cluster+".yaml")
	return s, err
}

// Play plays the scenario. The error names the line of run.
func (s *Scenario) Play(make NewCarrier) error {
	o := newObjects()
	if err := o.Apply(s.base); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	if err := o.Apply(s.files["objects.yaml"]); err != nil {
		return fmt.Errorf("objects.yaml: %w", err)
	}
	w, err := newWorld(o, make)
	if err != nil {
		return err
	}
	p := &player{scenario: s, world: w}
	for i, line := range s.lines {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		if err := p.line(line); err != nil {
			if ended := (*Ended)(nil); errors.As(err, &ended) {
				ended.Line = i + 1
				return ended
			}
			return fmt.Errorf("run line %d: %s\n  %w", i+1, line, err)
		}
	}
	if err := p.unchecked(); err != nil {
		return err
	}
	return p.waiting()
}

// player is a scenario that is being played.
type player struct {
	scenario *Scenario
	world    *World
	from     string
	sent     *packet.Packet
	journey  *Journey
	checked  bool
}

func (p *player) line(line string) error {
	words, err := packet.Words(line)
	if err != nil {
		return err
	}
	args := words[1:]
	switch words[0] {
	case "send", "again", "reply", "error", "then":
		if err := p.unchecked(); err != nil {
			return err
		}
		return p.start(words[0], args)
	case "arrives", "by", "drop", "answered", "kept", "lost", "rule", "event":
		if p.journey == nil {
			return errors.New("nothing was sent")
		}
		p.checked = true
		if err := p.check(words[0], args); err != nil {
			return fmt.Errorf("%w\n  its path:%s", err, p.journey)
		}
		return nil
	case "needs":
		return p.needs(args)
	case "connect":
		return p.connect(args, false)
	case "sendto":
		return p.connect(args, true)
	case "apply":
		data, ok := p.scenario.files[strings.Join(args, " ")]
		if !ok {
			return errors.New("no such file in the scenario")
		}
		if err := p.world.objects.Apply(data); err != nil {
			return err
		}
		return p.world.refresh()
	case "mtu":
		return p.mtu(args)
	case "holds":
		return p.holds(args)
	case "env":
		p.world.objects.environ = args
		return p.world.refresh()
	case "hand-over":
		if len(args) != 1 || args[0] != "begins" && args[0] != "ends" {
			return errors.New("usage: hand-over begins | ends")
		}
		p.world.objects.handOver = args[0] == "begins"
		return p.world.refresh()
	case "kube-proxy":
		if len(args) != 1 {
			return errors.New("usage: kube-proxy NODE")
		}
		p.world.objects.proxied = args[0]
		return p.world.refresh()
	case "delete":
		if len(args) != 2 {
			return errors.New("usage: delete KIND NAME")
		}
		if err := p.world.objects.Delete(args[0], args[1]); err != nil {
			return err
		}
		return p.world.refresh()
	case "advance":
		n, err := strconv.Atoi(strings.Join(args, ""))
		if err != nil {
			return err
		}
		if n > Moment {
			if err := p.needs([]string{FeatureTime}); err != nil {
				return err
			}
		}
		for _, m := range p.world.machines {
			if err := m.carrier.Advance(n); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("%q is not a command", words[0])
}

// needs ends the scenario where a node lacks something.
func (p *player) needs(words []string) error {
	if err := p.unchecked(); err != nil {
		return err
	}
	for _, need := range words {
		if !slices.Contains(needs, need) {
			return fmt.Errorf("needs: there is no %q", need)
		}
		for _, m := range p.world.machines {
			if l, ok := m.carrier.(Limited); ok {
				if why := l.Lacks(need); why != "" {
					return &Ended{Need: need, Why: why}
				}
			}
		}
	}
	return nil
}

// unchecked refuses to go on when nothing was said about the last packet: it could do anything.
func (p *player) unchecked() error {
	if p.journey != nil && !p.checked {
		return fmt.Errorf("nothing is expected of the packet before:%s", p.journey)
	}
	return nil
}

// waiting refuses to go on while fragments come in again.
func (p *player) waiting() error {
	if n := len(p.world.again); n > 0 {
		return fmt.Errorf("%d fragments come in again, and nothing says what becomes of them: then", n)
	}
	return nil
}

func (p *player) start(verb string, args []string) error {
	var err error
	if verb == "then" {
		p.journey, err = p.world.next()
		p.checked = false
		return err
	}
	if err := p.waiting(); err != nil {
		return err
	}
	switch verb {
	case "send":
		if len(args) < 2 {
			return errors.New("usage: send FROM PACKET")
		}
		p.from = args[0]
		p.sent, err = packet.Parse(strings.Join(args[1:], " "))
	case "again":
		if p.sent == nil {
			return errors.New("nothing was sent")
		}
		p.sent, err = with(p.sent, args)
	case "reply":
		if p.journey == nil || p.journey.End == "drop" {
			return errors.New("nobody got the last packet")
		}
		return p.travel(p.journey.End, func() (*packet.Packet, error) { return answer(p.journey.Packet, args) })
	case "error":
		if p.journey == nil || len(args) < 2 {
			return errors.New("usage, after a packet: error FROM ADDR WORD...")
		}
		return p.travel(args[0], func() (*packet.Packet, error) { return report(p.journey.Packet, args[1], args[2:]) })
	}
	if err != nil {
		return err
	}
	return p.travel(p.from, func() (*packet.Packet, error) { return p.sent, nil })
}

func (p *player) travel(from string, build func() (*packet.Packet, error)) error {
	pkt, err := build()
	if err != nil {
		return err
	}
	p.journey, err = p.world.send(from, pkt)
	p.checked = false
	if err != nil && p.journey != nil {
		return fmt.Errorf("%w\n  its path:%s", err, p.journey)
	}
	return err
}

func (p *player) check(verb string, args []string) error {
	j := p.journey
	switch verb {
	case "arrives":
		if len(args) == 0 || !matchText(args[0], j.End) {
			return fmt.Errorf("ended at %q", j.End)
		}
		return matchPacket(args[1:], j.Packet)
	case "lost":
		if !strings.HasPrefix(j.End, "lost") || !strings.Contains(j.End, strings.Join(args, " ")) {
			return fmt.Errorf("ended at %q", j.End)
		}
		return nil
	case "rule":
		return p.checkRule(args)
	case "event":
		return p.checkEvent(args)
	case "by":
		var hops []string
		for _, v := range j.Visits {
			hops = append(hops, fmt.Sprintf("%s/%s=%s", v.Node, v.Hook, v.Result.Action))
		}
		if got, want := strings.Join(hops, " "), strings.Join(args, " "); got != want {
			return fmt.Errorf("went by %s", got)
		}
		return nil
	}
	if verb == "kept" {
		v := j.Visits[len(j.Visits)-1]
		if got, want := fmt.Sprint(v.Node, " ", v.Hook), strings.Join(args, " "); j.End != "kept" || got != want {
			return fmt.Errorf("ended at %q, %s", j.End, got)
		}
		return nil
	}
	if len(args) < 3 {
		return fmt.Errorf("usage: %s NODE HOOK REASON [RULE]", verb)
	}
	v := j.Visits[len(j.Visits)-1]
	if verb == "answered" {
		i := slices.IndexFunc(j.Visits, func(v Visit) bool { return v.Result.Action == sim.Answer })
		if i < 0 {
			return errors.New("was not answered by a node")
		}
		v = j.Visits[i]
	} else if j.End != "drop" {
		return fmt.Errorf("ended at %q", j.End)
	}
	if got, want := fmt.Sprint(v.Node, " ", v.Hook, " ", v.Result.Reason), strings.Join(args[:3], " "); got != want {
		return fmt.Errorf("dropped: %s", got)
	}
	rule := p.world.ruleText(v.Node, v.Result.Rule)
	if want := strings.Join(args[3:], " "); want != "" && !strings.Contains(rule, want) {
		return fmt.Errorf("dropped by rule %q", rule)
	}
	return nil
}

// checkRule looks at the rule that allowed the last packet at its last hook of a node.
func (p *player) checkRule(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: rule NODE RULE")
	}
	for _, v := range slices.Backward(p.journey.Visits) {
		if v.Node != args[0] {
			continue
		}
		if rule := p.world.ruleText(v.Node, v.Result.Rule); !strings.Contains(rule, strings.Join(args[1:], " ")) {
			return fmt.Errorf("allowed by rule %q", rule)
		}
		return nil
	}
	return fmt.Errorf("the packet did not meet node %s", args[0])
}

// checkEvent looks for an event of the last packet on a node.
func (p *player) checkEvent(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: event NODE TEXT")
	}
	var all []string
	for _, v := range p.journey.Visits {
		if v.Node != args[0] {
			continue
		}
		for _, e := range v.Result.Events {
			all = append(all, e.Text(func(id nodestate.RuleID) string { return p.world.ruleText(v.Node, id) }))
		}
	}
	want := strings.Join(args[1:], " ")
	if want == "none" && len(all) == 0 || slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, want) }) {
		return nil
	}
	return fmt.Errorf("the events there are\n    %s", strings.Join(all, "\n    "))
}

func (w *World) ruleText(node string, id nodestate.RuleID) string {
	if id == 0 {
		return "none"
	}
	r, ok := w.machines[node].State.Rules.Get(id)
	if !ok {
		return fmt.Sprintf("%d, which the state does not name", id)
	}
	return r.String()
}

// matchPacket: every word of the pattern is one of the packet's; the ends by their place.
func matchPacket(pattern []string, p *packet.Packet) error {
	if len(pattern) == 0 {
		return nil
	}
	got, err := packet.Words(p.String())
	if err != nil {
		return err
	}
	for i, want := range pattern {
		ok := false
		if i < 4 {
			ok = i < len(got) && matchText(want, got[i])
		} else {
			for _, g := range got[4:] {
				ok = ok || matchText(want, g)
			}
		}
		if !ok {
			return fmt.Errorf("%q is not as expected: %s", want, p)
		}
	}
	return nil
}

// matchText matches a text with * for any part.
func matchText(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == text
	}
	if !strings.HasPrefix(text, parts[0]) {
		return false
	}
	text = text[len(parts[0]):]
	last := parts[len(parts)-1]
	for _, part := range parts[1 : len(parts)-1] {
		i := strings.Index(text, part)
		if i < 0 {
			return false
		}
		text = text[i+len(part):]
	}
	return strings.HasSuffix(text, last)
}

func (p *player) mtu(args []string) error {
	if len(args) != 3 || p.world.machines[args[0]] == nil || args[1] != "uplink" && args[1] != "pods" {
		return errors.New("usage: mtu NODE uplink|pods BYTES")
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	p.world.machines[args[0]].MTUs[map[string]int{"uplink": Uplink, "pods": 0}[args[1]]] = n
	return p.world.refresh()
}

func (p *player) holds(args []string) error {
	if len(args) != 2 || p.world.machines[args[0]] == nil {
		return errors.New("usage: holds NODE ADDRESS")
	}
	a, err := netip.ParseAddr(args[1])
	if err != nil {
		return err
	}
	m := p.world.machines[args[0]]
	m.Own = append(m.Own, a)
	return p.world.refresh()
}

func (p *player) connect(args []string, send bool) error {
	ok := len(args) == 4 && args[3] == "refused" || len(args) == 5 && args[3] == "->"
	if !ok {
		return errors.New("usage: FROM PROTO ADDR -> ADDR, or FROM PROTO ADDR refused")
	}
	proto := map[string]model.Protocol{"tcp": model.ProtocolTCP, "udp": model.ProtocolUDP}[args[1]]
	dst, err := netip.ParseAddrPort(args[2])
	if err != nil || proto == 0 {
		return fmt.Errorf("%s %s: not a protocol and an address", args[1], args[2])
	}
	to, err := p.world.connect(args[0], proto, dst, send)
	switch {
	case errors.Is(err, ErrNoSockets):
		return nil
	case errors.Is(err, sim.ErrRefused):
		if args[3] != "refused" {
			return err
		}
		return nil
	case err != nil:
		return err
	case args[3] == "refused" || !matchText(args[4], to.String()):
		return fmt.Errorf("was sent to %s", to)
	}
	return nil
}
