// SPDX-License-Identifier: Apache-2.0

package nfteval

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
)

// Attributes of linux/netfilter/nf_tables.h.
const (
	chainTable, chainName, chainHook, chainPolicy, chainType = 1, 3, 4, 5, 7
	hookNumber, hookPriority                                 = 1, 2
	ruleTable, ruleChain, ruleExpressions, ruleUserData      = 1, 2, 4, 7
	expressionName, expressionData                           = 1, 2
	setTable, setName, setFlags, setKeyLen                   = 1, 2, 3, 5
	listTable, listSet, listElements, listElement            = 1, 2, 3, 1
	elementKey, elementData                                  = 1, 2
	dataValue, dataVerdict                                   = 1, 2
	verdictCode, verdictChain                                = 1, 2
	generationID                                             = 1
)

// Table is a table as the kernel has it.
type Table struct {
	Family     uint8 // NFPROTO_IPV4, NFPROTO_IPV6
	Name       string
	Generation uint32 // of all rules of the network namespace
	Rules      int
	Others     []string // tables of others whose base chains packets of this family meet, too

	chains map[string]*chain
	keyLen map[string]int // of sets, bytes
}

type chain struct {
	name, typ string
	base      bool
	hook      uint32
	priority  int32
	policy    uint32
	rules     []rule
}

type rule struct {
	comment string
	exprs   []expression
}

type expression struct {
	name  string
	attrs map[uint16][]byte
}

// Read reads a table. A table that is not there has no chains.
func Read(family uint8, name string) (*Table, error) {
	for range 5 {
		t := &Table{Family: family, Name: name, chains: map[string]*chain{}, keyLen: map[string]int{}}
		var err error
		if t.Generation, err = generation(); err != nil {
			return nil, err
		}
		if err := errors.Join(t.readChains(), t.readRules(), t.readSets()); err != nil {
			return nil, fmt.Errorf("reading table %s: %w", name, err)
		}
		if same, err := t.Current(); same || err != nil {
			return t, err
		}
	}
	return nil, fmt.Errorf("table %s changes all the time", name)
}

// Current reports whether nobody changed any rules or sets since the table was read.
func (t *Table) Current() (bool, error) {
	now, err := generation()
	return now == t.Generation, err
}

// Comments are those of the rules, by chain, in order; a rule without one has an empty one.
func (t *Table) Comments() map[string][]string {
	out := map[string][]string{}
	for name, c := range t.chains {
		out[name] = []string{}
		for _, r := range c.rules {
			out[name] = append(out[name], r.comment)
		}
	}
	return out
}

func request(kind, flags int, family uint8, attrs ...*nl.RtAttr) ([][]byte, error) {
	return kernel.Dump(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags)
		req.AddData(&nl.Nfgenmsg{NfgenFamily: family})
		for _, a := range attrs {
			req.AddData(a)
		}
		msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
		for i, m := range msgs {
			if len(m) < nl.SizeofNfgenmsg {
				return nil, errors.New("the kernel's answer is too short")
			}
			msgs[i] = m[nl.SizeofNfgenmsg:]
		}
		return msgs, err
	})
}

// attributes are those of a message or of a nested attribute, the last of each kind.
func attributes(b []byte) (map[uint16][]byte, error) {
	all, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, err
	}
	out := make(map[uint16][]byte, len(all))
	for _, a := range all {
		out[kindOf(a)] = a.Value
	}
	return out, nil
}

func kindOf(a syscall.NetlinkRouteAttr) uint16 {
	return a.Attr.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
}

func number(b []byte) uint32 {
	switch len(b) {
	case 1:
		return uint32(b[0])
	case 2:
		return uint32(binary.BigEndian.Uint16(b))
	case 4:
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// text is a string of the kernel's, which ends with a zero.
func text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

func (t *Table) readChains() error {
	for _, family := range []uint8{t.Family, unix.NFPROTO_INET} {
		msgs, err := request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, family)
		if err != nil {
			return err
		}
		for _, m := range msgs {
			if err := t.readChain(m, family == t.Family); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *Table) readChain(m []byte, mine bool) error {
	a, err := attributes(m)
	if err != nil {
		return err
	}
	table := text(a[chainTable])
	hook, base := a[chainHook]
	if !mine || table != t.Name {
		if base && !slices.Contains(t.Others, table) {
			t.Others = append(t.Others, table)
		}
		return nil
	}
	c := &chain{name: text(a[chainName]), typ: text(a[chainType]), base: base, policy: accept}
	if base {
		h, err := attributes(hook)
		if err != nil {
			return err
		}
		c.hook, c.priority = number(h[hookNumber]), int32(number(h[hookPriority]))
		if p, ok := a[chainPolicy]; ok {
			c.policy = number(p)
		}
	}
	t.chains[c.name] = c
	return nil
}

func (t *Table) readRules() error {
	return t.each(unix.NFT_MSG_GETRULE, ruleTable, func(a map[uint16][]byte) error {
		c := t.chains[text(a[ruleChain])]
		if c == nil {
			return nil
		}
		r := rule{}
		r.comment, _ = userdata.GetString(a[ruleUserData], userdata.TypeComment)
		list, err := nl.ParseRouteAttr(a[ruleExpressions])
		if err != nil {
			return err
		}
		for _, one := range list {
			e, err := attributes(one.Value)
			if err != nil {
				return err
			}
			data, err := attributes(e[expressionData])
			if err != nil {
				return err
			}
			r.exprs = append(r.exprs, expression{text(e[expressionName]), data})
		}
		c.rules = append(c.rules, r)
		t.Rules++
		return nil
	})
}

func (t *Table) readSets() error {
	return t.each(unix.NFT_MSG_GETSET, setTable, func(a map[uint16][]byte) error {
		t.keyLen[text(a[setName])] = int(number(a[setKeyLen]))
		return nil
	})
}

// each calls f for what the table has of a kind; table is the attribute that names the table.
func (t *Table) each(kind int, table uint16, f func(map[uint16][]byte) error) error {
	msgs, err := request(kind, unix.NLM_F_DUMP, t.Family, nl.NewRtAttr(int(table), nl.ZeroTerminated(t.Name)))
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	for _, m := range msgs {
		a, err := attributes(m)
		if err != nil {
			return err
		}
		if text(a[table]) != t.Name {
			continue
		}
		if err := f(a); err != nil {
			return err
		}
	}
	return nil
}

// verdict is what a rule says should become of a packet.
type verdict struct {
	code  int32
	chain string // of jump and goto
}

// String is the verdict in nft's words.
func (v verdict) String() string {
	switch v.code {
	case jump:
		return "jump " + v.chain
	case goTo:
		return "goto " + v.chain
	case goBack:
		return "return"
	case accept:
		return "accept"
	case drop:
		return "drop"
	}
	return fmt.Sprintf("verdict %d", v.code)
}

// element asks the kernel whether a set has a key, and of a map, what it says.
func (t *Table) element(set string, key []byte) (found bool, value []byte, to *verdict, err error) {
	elements := nl.NewRtAttr(unix.NLA_F_NESTED|listElements, nil)
	elements.AddRtAttr(unix.NLA_F_NESTED|listElement, nil).AddRtAttr(unix.NLA_F_NESTED|elementKey, nil).AddRtAttr(dataValue, key)
	msgs, err := request(unix.NFT_MSG_GETSETELEM, 0, t.Family, nl.NewRtAttr(listTable, nl.ZeroTerminated(t.Name)), nl.NewRtAttr(listSet, nl.ZeroTerminated(set)), elements)
	if errors.Is(err, unix.ENOENT) {
		return false, nil, nil, nil
	}
	if err != nil || len(msgs) == 0 {
		return false, nil, nil, fmt.Errorf("looking for %x in set %s: %w", key, set, err)
	}
	a, err := attributes(msgs[0])
	if err != nil {
		return false, nil, nil, err
	}
	list, err := nl.ParseRouteAttr(a[listElements])
	if err != nil || len(list) == 0 {
		return false, nil, nil, err
	}
	e, err := attributes(list[0].Value)
	if err != nil {
		return false, nil, nil, err
	}
	value, to, err = datum(e[elementData])
	return true, value, to, err
}

// datum is a value or a verdict.
func datum(b []byte) ([]byte, *verdict, error) {
	d, err := attributes(b)
	if err != nil {
		return nil, nil, err
	}
	if said, ok := d[dataVerdict]; ok {
		v, err := attributes(said)
		return nil, &verdict{int32(number(v[verdictCode])), text(v[verdictChain])}, err
	}
	return d[dataValue], nil, nil
}

// generation is the number of changes of the network namespace's rules (NFT_MSG_GETGEN).
func generation() (uint32, error) {
	msgs, err := request(unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC)
	if err != nil || len(msgs) == 0 {
		return 0, fmt.Errorf("asking for the generation of nftables: %w", err)
	}
	a, err := attributes(msgs[0])
	return number(a[generationID]), err
}
